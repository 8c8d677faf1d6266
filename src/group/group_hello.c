/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The first exchange of a group: what ranks must agree on, and where each is. A rank counts as on this host only if its
 * word is seen here (host.h).
 */
#include "group.h"

#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "error.h"
#include "group_exchange.h"
#include "host.h"
#include "interfaces.h"
#include "log.h"
#include "neighbours.h"
#include "trace.h"

enum { HELLO_MAGIC = 0x78657031 };

/* What a rank says of itself first; all that a group must agree on. */
typedef struct hello {
    uint32_t magic;
    uint32_t version; /* of the library: ranks with different ones do not mix */
    uint32_t nranks;
    uint32_t node_ranks; /* XEP_NODE_RANKS */
    uint32_t traces;     /* whether there is XEP_TRACE; need not agree */
    int32_t heartbeat;   /* XEP_HEARTBEAT */
    int32_t map;         /* XEP_MAP */
    int32_t liveness;    /* XEP_LIVENESS */
    int32_t direct;      /* XEP_DIRECT */
    int32_t pid;
    uint32_t reserved;
    uint64_t start;
    uint64_t host;
    uint64_t network;   /* 0: not known */
    uint64_t processes; /* xep_host_processes() */
    uint64_t word;      /* xep_host_show() */
    xep_neighbour_t neighbour;
    uint32_t addresses[XEP_INTERFACES]; /* of its interfaces, in network order; then 0 */
} hello_t;
_Static_assert(sizeof(hello_t) == 88 + sizeof(xep_neighbour_t) + 4 * XEP_INTERFACES, "hello is exchanged as bytes");

/* Describes this process, so that ranks of the same host can see whether it is alive, and try to map it. */
static hello_t hello_of(const xep_group_t *group)
{
    hello_t hello = {.magic = HELLO_MAGIC,
                     .version = XEP_OWN_VERSION,
                     .nranks = group->nranks,
                     .node_ranks = group->config.node_ranks,
                     .traces = group->config.trace[0] != '\0',
                     .heartbeat = group->config.heartbeat,
                     .map = group->config.map,
                     .liveness = group->config.liveness,
                     .direct = group->config.direct,
                     .pid = (int32_t)getpid(),
                     .start = xep_host_start((int32_t)getpid()),
                     .host = xep_host_identity(),
                     .network = xep_host_network(),
                     .processes = xep_host_processes(),
                     .word = group->word.word};
    xep_neighbour_look(group->transport, &hello.neighbour);
    xep_interfaces_list(hello.addresses);
    return hello;
}

/* Compares with rank 0, so that all ranks report the same difference. */
static xep_status_t check_hellos(const xep_group_t *group, const hello_t *hellos)
{
    const hello_t *first = &hellos[0];
    for (uint32_t r = 0; r < group->nranks; r++) {
        const hello_t *h = &hellos[r];
        const struct {
            const char *what;
            int64_t theirs, first;
        } terms[] = {{"the number of ranks", h->nranks, first->nranks},
                     {"XEP_NODE_RANKS", h->node_ranks, first->node_ranks},
                     {"XEP_MAP", h->map, first->map},
                     {"XEP_DIRECT", h->direct, first->direct},
                     {"XEP_LIVENESS", h->liveness, first->liveness},
                     {"XEP_HEARTBEAT (ms)", h->heartbeat, first->heartbeat}};
        if (h->magic != HELLO_MAGIC || h->version != first->version)
            return xep_fail(XEP_ERR_MISMATCH, "rank %u and rank 0 run different versions of xep: %x, %x", r, h->version,
                            first->version);
        for (size_t i = 0; i < sizeof terms / sizeof terms[0]; i++)
            if (terms[i].theirs != terms[i].first)
                return xep_fail(XEP_ERR_MISMATCH, "rank %u and rank 0 disagree on %s: %" PRId64 ", %" PRId64, r,
                                terms[i].what, terms[i].theirs, terms[i].first);
    }
    return XEP_OK;
}

/* All ranks know rank 0's process, so it names the job. */
static void open_trace(xep_group_t *group, const hello_t *hellos)
{
    uint64_t job = hellos[0].host ^ hellos[0].start << 20 ^ (uint64_t)hellos[0].pid;
    for (uint32_t r = 0; r < group->nranks; r++) group->traced |= hellos[r].traces != 0;
    if (group->config.trace[0] == '\0') return;
    group->syncs_trace = xep_trace_open(group->config.trace, group->config.trace_bytes, group->rank, group->nranks, job,
                                        xep_host_clock());
}

/*
 * A rank with the names of this host whose word is not seen here is on another host, perhaps resumed from the same
 * snapshot: it cannot be mapped, and its process number means another process here.
 */
static xep_peer_t peer_of(const xep_group_t *group, uint32_t rank, const hello_t *theirs, const hello_t *mine)
{
    int named = theirs->host == mine->host;
    int here = named && xep_host_sees(&group->word, XEP_HOST_SHOWS_PROCESSES, theirs->word);
    if (named && !here)
        xep_log(XEP_LOG_INFO, "rank %u is on another host, though with the same boot id and namespaces", rank);
    return (xep_peer_t){.pid = theirs->pid,
                        .start = theirs->start,
                        .host = named && !here ? ~theirs->host : theirs->host,
                        .visible = here && theirs->processes == mine->processes &&
                                   group->config.liveness == XEP_LIVENESS_PROCESS};
}

static int is_local(const xep_group_t *group, const hello_t *theirs, const hello_t *mine)
{
    return mine->network != 0 && theirs->network == mine->network &&
           xep_host_sees(&group->word, XEP_HOST_SHOWS_NETWORK, theirs->word);
}

/* Bridges of containers have the same address on every host: messages to it do not leave this host. */
static void find_twins(const xep_group_t *group, const hello_t *mine, const hello_t *hellos, xep_whereabouts_t *where)
{
    for (int i = 0; i < XEP_INTERFACES && mine->addresses[i] != 0; i++)
        for (uint32_t r = 0; r < where->nranks; r++) {
            if (hellos[r].network == 0 || !xep_interfaces_have(hellos[r].addresses, mine->addresses[i])) continue;
            if (is_local(group, &hellos[r], mine)) continue; /* asks the kernel, so it comes last */
            where->twins[where->ntwins++] = (xep_twin_t){mine->addresses[i], r};
            break;
        }
}

static void find_whereabouts(const xep_group_t *group, const hello_t *mine, const hello_t *hellos,
                             xep_whereabouts_t *where)
{
    *where = (xep_whereabouts_t){.nranks = group->nranks, .local = mine->network != 0};
    for (uint32_t r = 0; r < group->nranks; r++) {
        where->elsewhere += group->peers[r].host != mine->host;
        where->local &= is_local(group, &hellos[r], mine);
    }
    if (mine->network != 0 && !where->local) find_twins(group, mine, hellos, where);
}

static void find_neighbours(const xep_group_t *group, const hello_t *hellos, xep_neighbours_t *neighbours)
{
    *neighbours = (xep_neighbours_t){0};
    for (uint32_t r = 0; r < group->nranks; r++)
        if (group->peers[r].host == group->peers[group->rank].host)
            xep_neighbours_add(neighbours, r, hellos[r].pid, &hellos[r].neighbour);
}

xep_status_t xep_group_hello(xep_group_t *group, xep_neighbours_t *neighbours, xep_whereabouts_t *where)
{
    xep_host_show(group->rank, &group->word);
    hello_t mine = hello_of(group), *hellos = calloc(group->nranks, sizeof *hellos);
    xep_status_t status;
    if (hellos == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u ranks", group->nranks);
    status = xep_group_exchange(group, &mine, hellos, sizeof mine);
    if (status == XEP_OK) status = check_hellos(group, hellos);
    if (status != XEP_OK) goto out;
    group->peers = calloc(group->nranks, sizeof *group->peers);
    group->out = calloc(group->nranks, sizeof *group->out);
    if (group->peers == NULL || group->out == NULL) {
        status = xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u ranks", group->nranks);
        goto out;
    }
    for (uint32_t r = 0; r < group->nranks; r++) group->peers[r] = peer_of(group, r, &hellos[r], &mine);
    open_trace(group, hellos);
    find_whereabouts(group, &mine, hellos, where);
    find_neighbours(group, hellos, neighbours);
out:
    free(hellos);
    return status;
}
