/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The order matters. Hellos first, over the bootstrap, so that ranks of different versions or settings part with a
 * sentence; then addresses; then the control heap, by which the nodes are found: what UCX can map is tried, not
 * concluded from host names. From then on the group exchanges over its own connections, and the bootstrap has done its
 * work.
 */
#include "group.h"

#include <stdlib.h>

#include "error.h"
#include "group_abort.h"
#include "group_account.h"
#include "group_control.h"
#include "group_ctl.h"
#include "group_doorbell.h"
#include "group_exchange.h"
#include "group_out.h"
#include "host.h"
#include "log.h"
#include "recording.h"

/*
 * How ranks become a group, over the bootstrap until step 6:
 *  1. hello: version, settings that must agree, host and process of each, the shared memory that each can have, and a
 *     word that ranks of that host look for before the addresses are exchanged. Ranks of one host may try to map, and
 *     use the kinds that all of them have.
 *  2. the transport, which is told where the ranks are, and which interfaces cannot reach them; and its addresses. No
 *     connection is made yet.
 *  3. the control heap, and its keys.
 *  4. each tries to map the control heap of every rank it may, and says how far it got; from that all compute the same
 *     nodes, or the same error.
 *  5. a barrier over the control heap: every rank is reached once.
 *  6. from now on the group's own connections serve; the bootstrap is asked for dead ranks alone.
 *
 * The end: a barrier, as a rank that leaves takes away memory that others may still look into; then the transport,
 * then the bootstrap. Where a rank has died, or the group was aborted, nobody is waited for.
 */

/* Ranks of another host or of another drawn node are not tried; all others are. */
static int may_map(const xep_group_t *group, uint32_t rank)
{
    uint32_t n = group->config.node_ranks;
    if (group->config.map == XEP_MAP_NEVER) return rank == group->rank;
    if (n != 0 && rank / n != group->rank / n) return 0;
    return group->peers[rank].host == group->peers[group->rank].host;
}

static uint8_t flags_of(const xep_group_t *group, uint32_t rank)
{
    int flags = may_map(group, rank) ? XEP_PEER_MAY_MAP : 0;
    return (uint8_t)(group->peers[rank].visible ? flags | XEP_PEER_VISIBLE : flags);
}

static xep_status_t connect_transport(xep_group_t *group)
{
    xep_blobs_t blobs;
    uint8_t *peers;
    xep_status_t status;
    status = xep_group_exchange_blobs(group, group->transport->address, group->transport->address_bytes, &blobs);
    xep_host_hide(&group->word); /* all have looked for it before they came here */
    if (status != XEP_OK) return status;
    peers = calloc(group->nranks, 1);
    if (peers == NULL) {
        status = xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u ranks", group->nranks);
        goto out;
    }
    for (uint32_t r = 0; r < group->nranks; r++) peers[r] = flags_of(group, r);
    status =
        group->transport->ops->connect(group->transport, group->rank, group->nranks, blobs.blob, blobs.bytes, peers);
    free(peers);
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

/* Those of which the kernel here does not tell, at once. */
static xep_status_t watch_others(xep_group_t *group)
{
    int32_t interval_ms = group->config.heartbeat;
    uint8_t *elsewhere = calloc(group->nranks, 1);
    uint32_t count = 0;
    if (elsewhere == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u ranks", group->nranks);
    for (uint32_t r = 0; r < group->nranks; r++) {
        elsewhere[r] = r != group->rank && !group->peers[r].visible;
        count += elsewhere[r];
    }
    xep_status_t status = XEP_OK;
    if (count != 0 && interval_ms > 0) status = group->transport->ops->watch(group->transport, elsewhere, interval_ms);
    free(elsewhere);
    return status;
}

xep_status_t xep_group_open(const xep_config_t *config, int32_t timeout_ms, xep_boot_t *boot,
                            xep_transport_open_fn open_transport, xep_group_t **group_p)
{
    xep_status_t status;
    xep_whereabouts_t where;
    xep_neighbours_t neighbours;
    xep_group_t *group = xep_forks_begin() == 0 ? calloc(1, sizeof *group) : NULL;
    if (group == NULL) {
        free(boot);
        return xep_fail(XEP_ERR_NO_MEMORY, "no memory for a group");
    }
    group->forks = xep_forks;
    group->config = *config;
    group->boot = boot;
    group->rank = boot->rank;
    group->nranks = boot->nranks;
    group->timeout_ms = timeout_ms;
    pthread_mutex_init(&group->tasks_lock, NULL);
    xep_log_rank((int)group->rank);
    if ((status = open_transport(config, &group->transport)) != XEP_OK) goto err_close;
    if ((status = xep_group_hello(group, &neighbours, &where)) != XEP_OK) goto err_close;
    if ((status = xep_recording_open(config, group->rank, group->nranks, &group->recording)) != XEP_OK) goto err_close;
    if ((status = group->transport->ops->start(group->transport, &neighbours, &where)) != XEP_OK) goto err_close;
    if ((status = xep_ctl_open(group)) != XEP_OK) goto err_close;
    if ((status = xep_group_find_oversubscription(group)) != XEP_OK) goto err_close;
    if ((status = connect_transport(group)) != XEP_OK) goto err_close;
    if ((status = xep_group_open_control(group)) != XEP_OK) goto err_close;
    if ((status = xep_group_connect_heap(group, group->control)) != XEP_OK) goto err_close;
    if ((status = find_nodes(group)) != XEP_OK) goto err_close;
    if ((status = xep_group_find_doorbells(group)) != XEP_OK) goto err_close;
    /* Reaches every rank once: what cannot be reached is told now, and UCX 1.13 crashes where it unpacks
     * the key of a shared segment for the first time after its owner has died. */
    if ((status = xep_group_sync_clocks(group)) != XEP_OK) goto err_close;
    /* control messages likewise; the barrier gives UCX the rounds in which it answers */
    xep_ctl_begin(group);
    if (group->nnodes != 1 && (status = xep_group_run_barrier(group)) != XEP_OK) goto err_close;
    if ((status = watch_others(group)) != XEP_OK) goto err_close;
    group->connected = 1;
    if (config->progress == XEP_PROGRESS_THREAD &&
        (status = xep_progress_start(group, &group->progress_thread)) != XEP_OK)
        goto err_close;
    xep_log(XEP_LOG_INFO, "group of %u ranks on %u nodes, bootstrapped by %s", group->nranks, group->nnodes,
            boot->name);
    *group_p = group;
    return XEP_OK;

err_close:
    group->connected = 0;
    atomic_store(&group->aborted, 1); /* nobody to wait for */
    (void)xep_group_close(group);
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
    (void)xep_group_close(group);
}

xep_status_t xep_group_close(xep_group_t *group)
{
    xep_status_t status = leave_together(group);
    xep_progress_stop(group->progress_thread);
    if (group->control != NULL) {
        group->control->exposed = status != XEP_OK;
        group->transport->ops->heap_close(group->control);
    }
    xep_group_accounts_close(group);
    if (group->transport != NULL) group->transport->ops->close(group->transport);
    xep_ctl_close(group);
    xep_host_hide(&group->word);
    free(group->boot);
    pthread_mutex_destroy(&group->tasks_lock);
    xep_recording_close(group->recording);
    free(group->control_of);
    free(group->out);
    free(group->peers);
    free(group);
    return status;
}
