/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The order matters. Hellos first, over the bootstrap, so that ranks of different versions or settings part with a
 * sentence; then addresses; then the control heap, by which the nodes are found: what UCX can map is tried, not
 * concluded from host names. From then on the group exchanges over its own connections, and the bootstrap has done its
 * work.
 */
#include "group_create.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cpu.h"
#include "error.h"
#include "group_abort.h"
#include "group_account.h"
#include "group_bell.h"
#include "group_control.h"
#include "group_exchange.h"
#include "group_mail.h"
#include "group_out.h"
#include "host.h"
#include "log.h"
#include "neighbours.h"
#include "progress_thread.h"
#include "recording.h"
#include "trace.h"

/*
 * How ranks become a group, over the bootstrap until step 6:
 *  1. hello: version, settings that must agree, host and process of each, the shared memory that each can have. Ranks
 *     of one host may try to map, and use the kinds that all of them have.
 *  2. the transport, which is told whether all ranks share the network's interfaces, and its addresses. No connection
 *     is made yet.
 *  3. the control heap, and its keys.
 *  4. each tries to map the control heap of every rank it may, and says how far it got; from that all compute the same
 *     nodes, or the same error.
 *  5. a barrier over the control heap: every rank is reached once.
 *  6. from now on the group's own connections serve; the bootstrap is asked for dead ranks alone.
 *
 * The end: a barrier, as a rank that leaves takes away memory that others may still look into; then the transport,
 * then the bootstrap. Where a rank has died, or the group was aborted, nobody is waited for.
 */

enum { HELLO_MAGIC = 0x78657031 };

/* What a rank says of itself first; everything a group needs to agree on. */
typedef struct hello {
    uint32_t magic;
    uint32_t version; /* of the library: ranks with different ones do not mix */
    uint32_t nranks;
    uint32_t node_ranks; /* XEP_NODE_RANKS */
    uint32_t traces;     /* whether there is XEP_TRACE; need not agree */
    int32_t heartbeat;   /* XEP_HEARTBEAT */
    int32_t map;         /* XEP_MAP */
    int32_t pid;
    uint64_t start;
    uint64_t host;
    uint64_t network; /* 0: not known */
    xep_neighbour_t neighbour;
} hello_t;
_Static_assert(sizeof(hello_t) == 56 + sizeof(xep_neighbour_t), "hello is exchanged as bytes");

static uint32_t library_version(void)
{
    return XEP_VERSION_MAJOR << 16 | XEP_VERSION_MINOR << 8 | XEP_VERSION_PATCH;
}

/* What of this process tells a rank of the same host whether it is alive, and whether to try to map it. */
static hello_t hello_of(const xep_group_t *group)
{
    hello_t hello = {.magic = HELLO_MAGIC,
                     .version = library_version(),
                     .nranks = group->nranks,
                     .node_ranks = group->config.node_ranks,
                     .traces = group->config.trace[0] != '\0',
                     .heartbeat = group->config.heartbeat,
                     .map = group->config.map,
                     .pid = (int32_t)getpid(),
                     .start = xep_host_start((int32_t)getpid()),
                     .host = xep_host_identity(),
                     .network = xep_host_network()};
    xep_neighbour_look(group->transport, &hello.neighbour);
    return hello;
}

static xep_status_t disagree(const xep_group_t *group, const char *what, uint32_t rank, long long theirs,
                             long long first)
{
    (void)group;
    return xep_fail(XEP_ERR_MISMATCH, "rank %u and rank 0 disagree on %s: %lld, %lld", rank, what, theirs, first);
}

/* Against rank 0, so that all ranks say the same of the same difference. */
static xep_status_t check_hellos(const xep_group_t *group, const hello_t *hellos)
{
    for (uint32_t r = 0; r < group->nranks; r++) {
        const hello_t *h = &hellos[r], *first = &hellos[0];
        if (h->magic != HELLO_MAGIC || h->version != first->version)
            return xep_fail(XEP_ERR_MISMATCH, "rank %u and rank 0 run different versions of xep: %x, %x", r, h->version,
                            first->version);
        if (h->nranks != first->nranks) return disagree(group, "the number of ranks", r, h->nranks, first->nranks);
        if (h->node_ranks != first->node_ranks)
            return disagree(group, "XEP_NODE_RANKS", r, h->node_ranks, first->node_ranks);
        if (h->map != first->map) return disagree(group, "XEP_MAP", r, h->map, first->map);
        if (h->heartbeat != first->heartbeat)
            return disagree(group, "XEP_HEARTBEAT (ms)", r, h->heartbeat, first->heartbeat);
    }
    return XEP_OK;
}

/* All ranks know rank 0's process, so it names the job. */
static void open_trace(xep_group_t *group, const hello_t *hellos)
{
    uint64_t job = hellos[0].host ^ hellos[0].start << 20 ^ (uint64_t)hellos[0].pid;
    for (uint32_t r = 0; r < group->nranks; r++) group->traced |= hellos[r].traces != 0;
    if (group->config.trace[0] == '\0') return;
    group->syncs_trace =
        xep_trace_open(group->config.trace, group->config.trace_bytes, group->rank, group->nranks, job);
}

static void find_neighbours(const xep_group_t *group, const hello_t *hellos, xep_neighbours_t *neighbours)
{
    *neighbours = (xep_neighbours_t){0};
    for (uint32_t r = 0; r < group->nranks; r++)
        if (hellos[r].host == hellos[group->rank].host)
            xep_neighbours_add(neighbours, r, hellos[r].pid, &hellos[r].neighbour);
}

/* local_p: whether all ranks share the network's interfaces */
static xep_status_t exchange_hellos(xep_group_t *group, xep_neighbours_t *neighbours, int *local_p)
{
    hello_t mine = hello_of(group), *hellos = calloc(group->nranks, sizeof *hellos);
    xep_status_t status;
    if (hellos == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u ranks", group->nranks);
    status = xep_group_exchange(group, &mine, hellos, sizeof mine);
    if (status == XEP_OK) status = check_hellos(group, hellos);
    if (status != XEP_OK) goto out;
    xep_peer_t *peers = calloc(group->nranks, sizeof *peers);
    if (peers == NULL) {
        status = xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u ranks", group->nranks);
        goto out;
    }
    for (uint32_t r = 0; r < group->nranks; r++)
        peers[r] = (xep_peer_t){.pid = hellos[r].pid, .start = hellos[r].start, .host = hellos[r].host};
    group->peers = peers;
    group->out = calloc(group->nranks, sizeof *group->out);
    if (group->out == NULL) {
        status = xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u ranks", group->nranks);
        goto out;
    }
    open_trace(group, hellos);
    find_neighbours(group, hellos, neighbours);
    *local_p = hellos[0].network != 0;
    for (uint32_t r = 1; r < group->nranks; r++) *local_p &= hellos[r].network == hellos[0].network;
out:
    free(hellos);
    return status;
}

/* Ranks of another host or of another drawn node are not tried; all others are. */
static int may_map(const xep_group_t *group, uint32_t rank)
{
    uint32_t n = group->config.node_ranks;
    if (group->config.map == XEP_MAP_NEVER) return rank == group->rank;
    if (n != 0 && rank / n != group->rank / n) return 0;
    return group->peers[rank].host == group->peers[group->rank].host;
}

static xep_status_t connect_transport(xep_group_t *group)
{
    const void *address;
    size_t bytes;
    xep_blobs_t blobs;
    uint8_t *may;
    xep_status_t status;
    group->transport->ops->address(group->transport, &address, &bytes);
    status = xep_group_exchange_blobs(group, address, bytes, &blobs);
    if (status != XEP_OK) return status;
    may = calloc(group->nranks, 1);
    if (may == NULL) {
        status = xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u ranks", group->nranks);
        goto out;
    }
    for (uint32_t r = 0; r < group->nranks; r++) may[r] = (uint8_t)may_map(group, r);
    status = group->transport->ops->connect(group->transport, group->rank, group->nranks, blobs.blob, blobs.bytes, may);
    free(may);
out:
    xep_blobs_free(&blobs);
    return status;
}

/* What a rank says of the ranks it maps: the lowest, how many, and their sum. */
typedef struct reach {
    uint32_t lowest, count;
    uint64_t sum;
} reach_t;
_Static_assert(sizeof(reach_t) == 16, "exchanged as bytes: no padding");

static reach_t find_reach(const xep_group_t *group)
{
    xep_wire_t *wire = &group->control->wire;
    reach_t reach = {.lowest = group->rank};
    for (uint32_t r = 0; r < group->nranks; r++) {
        if (r != group->rank && (!may_map(group, r) || wire->ops->map(wire, r) == NULL)) continue;
        if (r < reach.lowest) reach.lowest = r;
        reach.count++;
        reach.sum += r;
    }
    return reach;
}

/*
 * A node is the ranks that map one another, numbered by its first rank. Modes count on it that mapping is mutual:
 * ranks of a node must all have said the same of it, and it must be what they are.
 */
static xep_status_t assign_nodes(xep_group_t *group, const reach_t *reach)
{
    for (uint32_t r = 0; r < group->nranks; r++) {
        const reach_t *leader = &reach[reach[r].lowest];
        if (reach[r].lowest > r || leader->lowest != reach[r].lowest || leader->count != reach[r].count ||
            leader->sum != reach[r].sum)
            return xep_fail(
                XEP_ERR_TRANSPORT,
                "rank %u maps %u ranks from rank %u on, which maps %u from rank %u on (all ranks of a machine must map "
                "one another, or none with XEP_MAP=never)",
                r, reach[r].count, reach[r].lowest, leader->count, leader->lowest);
        group->peers[r].node = reach[r].lowest == r ? group->nnodes++ : group->peers[reach[r].lowest].node;
    }
    for (uint32_t r = 0; r < group->nranks; r++)
        group->peers[r].mapped = group->peers[r].node == group->peers[group->rank].node;
    return XEP_OK;
}

static xep_status_t find_nodes(xep_group_t *group)
{
    reach_t mine = find_reach(group), *all = calloc(group->nranks, sizeof *all);
    xep_status_t status;
    if (all == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u ranks", group->nranks);
    status = xep_group_exchange(group, &mine, all, sizeof mine);
    for (uint32_t r = 0; status == XEP_OK && r < group->nranks; r++)
        if (all[r].lowest >= group->nranks)
            status = xep_fail(XEP_ERR_PROTOCOL, "invalid node from rank %u: its lowest rank is %u (below %u)", r,
                              all[r].lowest, group->nranks);
    if (status == XEP_OK) status = assign_nodes(group, all);
    free(all);
    return status;
}

/* Ranks of other hosts; of those here the kernel tells, at once. */
static xep_status_t watch_others(xep_group_t *group)
{
    int32_t interval_ms = group->config.heartbeat;
    uint8_t *elsewhere = calloc(group->nranks, 1);
    uint32_t count = 0;
    if (elsewhere == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u ranks", group->nranks);
    for (uint32_t r = 0; r < group->nranks; r++) {
        elsewhere[r] = group->peers[r].host != group->peers[group->rank].host;
        count += elsewhere[r];
    }
    xep_status_t status = XEP_OK;
    if (count != 0 && interval_ms > 0) status = group->transport->ops->watch(group->transport, elsewhere, interval_ms);
    free(elsewhere);
    return status;
}

/*
 * Who sleeps early leaves more to other programs, and is woken more often. 32 ranks on two cores with nothing else
 * there, T=128, H=2048, a dispatch: 4.1 ms if they sleep after some rounds, 4.9 after 0.5 ms, 5.4 after 2, 3.7 after 4,
 * and 2.9 to 4.1 if they yield alone; 16 ranks 1.7 to 2.5, 2.4, 2.0 after 2 ms, and 1.6 to 1.9. Beside four programs
 * that compute 16 ranks take 9.1 ms, 10.8, 11.8, and 14 to 19, of processor time 4.4, 8.9, 12 and 15 to 22.
 */
static uint64_t awake_ns(uint32_t ranks_a_processor)
{
    enum { FEW = 4, EACH_NS = 250 * 1000 };
    return ranks_a_processor <= FEW ? 0 : (uint64_t)ranks_a_processor * EACH_NS;
}

/* Launchers may have bound ranks to processors of their own: only those of all together count. */
static xep_status_t find_crowd(xep_group_t *group)
{
    int32_t *pids = calloc(group->nranks, sizeof *pids);
    if (pids == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u ranks", group->nranks);
    for (uint32_t r = 0; r < group->nranks; r++)
        if (group->peers[r].host == group->peers[group->rank].host) pids[group->here++] = group->peers[r].pid;
    group->processors = xep_cpu_count(pids, group->here);
    group->rests = group->here > group->processors ? XEP_REST_CROWDED : XEP_REST_ALONE;
    group->awake_ns = awake_ns((group->here + group->processors - 1) / group->processors);
    free(pids);
    return XEP_OK;
}

xep_status_t xep_group_open(const xep_config_t *config, int32_t timeout_ms, xep_boot_t *boot,
                            xep_transport_open_fn open_transport, xep_group_t **group_p)
{
    xep_status_t status;
    int local = 0;
    xep_neighbours_t neighbours;
    xep_group_t *group = calloc(1, sizeof *group);
    if (group == NULL) {
        boot->ops->close(boot);
        return xep_fail(XEP_ERR_NO_MEMORY, "no memory for a group");
    }
    group->config = *config;
    group->boot = boot;
    group->rank = boot->rank;
    group->nranks = boot->nranks;
    group->timeout_ms = timeout_ms;
    pthread_mutex_init(&group->tasks_lock, NULL);
    xep_log_rank((int)group->rank);
    if ((status = open_transport(config, &group->transport)) != XEP_OK) goto err_close;
    if ((status = exchange_hellos(group, &neighbours, &local)) != XEP_OK) goto err_close;
    if ((status = xep_recording_open(config, group->rank, group->nranks, &group->recording)) != XEP_OK) goto err_close;
    if ((status = group->transport->ops->start(group->transport, &neighbours, local)) != XEP_OK) goto err_close;
    if ((status = xep_mail_open(group)) != XEP_OK) goto err_close;
    if ((status = find_crowd(group)) != XEP_OK) goto err_close;
    if ((status = connect_transport(group)) != XEP_OK) goto err_close;
    if ((status = xep_group_open_control(group)) != XEP_OK) goto err_close;
    if ((status = xep_group_connect_heap(group, group->control)) != XEP_OK) goto err_close;
    if ((status = find_nodes(group)) != XEP_OK) goto err_close;
    if ((status = xep_group_find_bells(group)) != XEP_OK) goto err_close;
    /* Reaches every rank once: what cannot be reached is told now, and UCX 1.13 crashes where it unpacks
     * the key of a shared segment for the first time after its owner has died. */
    if ((status = xep_group_sync_clocks(group)) != XEP_OK) goto err_close;
    /* mail likewise; the barrier gives UCX the rounds in which it answers */
    xep_mail_begin(group);
    if (group->nnodes != 1 && (status = xep_group_run_barrier(group)) != XEP_OK) goto err_close;
    if ((status = watch_others(group)) != XEP_OK) goto err_close;
    group->connected = 1;
    if (config->progress == XEP_PROGRESS_THREAD &&
        (status = xep_progress_start(group, &group->progress_thread)) != XEP_OK)
        goto err_close;
    xep_log(XEP_LOG_INFO, "group of %u ranks on %u nodes, bootstrapped by %s", group->nranks, group->nnodes,
            boot->ops->name);
    *group_p = group;
    return XEP_OK;

err_close:
    group->connected = 0;
    atomic_store(&group->aborted, 1); /* nobody to wait for */
    xep_group_close(group);
    return status;
}

/* Until all are here, peers may still reach for what we are about to take away. */
static xep_status_t leave_together(xep_group_t *group)
{
    /* the reason of a create that failed stays */
    if (atomic_load(&group->aborted) && !group->connected) return XEP_ERR_ABORTED;
    if (xep_group_usable(group) != XEP_OK) return XEP_ERR_ABORTED;
    if (group->nranks == 1) return XEP_OK;
    if (group->left_out) return xep_group_fail_out(XEP_OUT_BY_OTHERS);
    xep_status_t status = xep_group_check_peers(group, group->goes_on);
    if (status == XEP_OK) status = xep_group_sync_clocks(group);
    if (status != XEP_OK) xep_log(XEP_LOG_WARN, "leaving the group without all ranks: %s", xep_last_error());
    return status;
}

void xep_group_drop(xep_group_t *group)
{
    if (group == NULL) return;
    group->connected = 0; /* nobody is told: those that have it drop it too */
    atomic_store(&group->aborted, 1);
    xep_group_close(group);
}

void xep_group_close(xep_group_t *group)
{
    xep_status_t status = leave_together(group);
    xep_progress_stop(group->progress_thread);
    if (group->control != NULL) {
        group->control->exposed = status != XEP_OK;
        group->transport->ops->heap_close(group->control);
    }
    xep_group_accounts_close(group);
    if (group->transport != NULL) group->transport->ops->close(group->transport);
    xep_mail_close(group);
    group->boot->ops->close(group->boot);
    pthread_mutex_destroy(&group->tasks_lock);
    xep_recording_close(group->recording);
    free(group->control_of);
    free(group->out);
    free(group->peers);
    free(group);
}
