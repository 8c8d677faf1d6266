/* SPDX-License-Identifier: BSD-3-Clause */

/* The transport: opening, the exchange of addresses, progress, closing. */

#include "ucp_transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backoff.h"
#include "error.h"
#include "ucp_context.h"
#include "ucp_heap.h"
#include "ucp_heartbeat.h"
#include "ucp_link.h"
#include "ucp_memory.h"
#include "ucp_message.h"
#include "ucp_op.h"
#include "ucp_peer.h"
#include "ucp_settings.h"
#include "ucp_shared.h"

enum { FENCE_MAY_BLOCK = 114 };
#if defined(__x86_64__)
enum { STORES_KEEP_ORDER = 1 };
#else
enum { STORES_KEEP_ORDER = 0 };
#endif

static xep_ucp_transport_t *transport_of(xep_transport_t *transport)
{
    return (xep_ucp_transport_t *)transport;
}

/* Copies them: they are the caller's. */
static xep_status_t take_addresses(xep_ucp_transport_t *transport, const void *const *addresses, const size_t *bytes,
                                   const uint8_t *peers)
{
    size_t total = 0;
    xep_status_t status = XEP_OK;
    for (uint32_t rank = 0; rank < transport->nranks; rank++) total += bytes[rank];
    uint8_t *copy = transport->addresses = malloc(total);
    if (copy == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for the addresses of %u ranks", transport->nranks);
    for (uint32_t rank = 0; status == XEP_OK && rank < transport->nranks; rank++) {
        memcpy(copy, addresses[rank], bytes[rank]);
        status = xep_ucp_address_take(transport, rank, copy, bytes[rank], peers[rank]);
        copy += bytes[rank];
    }
    return status;
}

/* A heap without memory, whose links are never opened: messages that belong to no heap are counted there. */
static xep_status_t open_ctl(xep_ucp_transport_t *transport)
{
    xep_ucp_heap_t *ctl = transport->ctl = calloc(1, sizeof *ctl);
    if (ctl == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for a heap");
    ctl->transport = transport;
    ctl->links = calloc(transport->nranks, sizeof *ctl->links);
    if (ctl->links == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u ranks", transport->nranks);
    for (uint32_t rank = 0; rank < transport->nranks; rank++)
        ctl->links[rank] = (xep_ucp_link_t){.rank = rank, .heap = ctl};
    return XEP_OK;
}

/* Endpoints are made later, when a rank is first reached. */
static xep_status_t transport_connect(xep_transport_t *base, uint32_t rank, uint32_t nranks,
                                      const void *const *addresses, const size_t *bytes, const uint8_t *peers)
{
    xep_ucp_transport_t *transport = transport_of(base);
    transport->peers = calloc(nranks, sizeof transport->peers[0]);
    if (transport->peers == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u ranks", nranks);
    xep_ucp_lock(transport);
    transport->rank = rank;
    transport->nranks = nranks;
    xep_status_t status = take_addresses(transport, addresses, bytes, peers);
    if (status == XEP_OK) status = open_ctl(transport);
    xep_ucp_unlock(transport);
    return status;
}

/*
 * As long as loads and stores reach all peers, UCX has nothing to do for this rank. But a peer may not have mapped this
 * rank, so UCX makes progress now and then. That costs 10 ns if only shared memory is open, 300-450 ns with TCP.
 */
static bool is_idle(xep_ucp_transport_t *transport)
{
    enum { ASK_EVERY = 16 };
    if (atomic_load_explicit(&transport->urgent, memory_order_relaxed)) return false;
    return atomic_fetch_add_explicit(&transport->calls, 1, memory_order_relaxed) % ASK_EVERY != 0;
}

static xep_status_t transport_progress(xep_transport_t *base)
{
    xep_ucp_transport_t *transport = transport_of(base);
    if (is_idle(transport) || !xep_ucp_trylock(transport)) return XEP_OK;
    xep_ucp_advance(transport);
    xep_ucp_unlock(transport);
    return XEP_OK;
}

static const char *transport_describe(xep_transport_t *base, uint32_t rank)
{
    return rank < transport_of(base)->nranks ? transport_of(base)->peers[rank].text : "no such rank";
}

/* A rank that has said goodbye is not gone; its connections are. */
static int transport_is_gone(xep_transport_t *base, uint32_t rank, char *why, size_t bytes)
{
    xep_ucp_transport_t *transport = transport_of(base);
    xep_ucp_lock(transport);
    const xep_ucp_peer_t *peer = &transport->peers[rank];
    int gone = peer->gone[0] != '\0' && !peer->left;
    if (gone) snprintf(why, bytes, "%s", peer->gone);
    xep_ucp_unlock(transport);
    return gone;
}

/* there is a socket to it that will be closed */
static bool has_socket(xep_ucp_peer_t *peer)
{
    return peer->endpoint != NULL && peer->failed == UCS_OK && xep_ucp_peer_is_tcp(peer);
}

static bool all_have_left(xep_ucp_transport_t *transport)
{
    for (uint32_t rank = 0; rank < transport->nranks; rank++)
        if (has_socket(&transport->peers[rank]) && !transport->peers[rank].left) return false;
    return true;
}

/*
 * A socket that is closed with unread bytes drops what it has not sent, and UCX reports a failure to the peer. So two
 * ranks with a socket between them close it when both have said goodbye, or after a while. This makes no connections:
 * libucp 1.13 has aborted when it made an endpoint to a rank that was leaving.
 */
static void say_goodbye(xep_ucp_transport_t *transport)
{
    enum { PATIENCE_MS = 500 };
    xep_backoff_t backoff;
    xep_backoff_begin(&backoff, XEP_BACKOFF_RARE, xep_deadline(PATIENCE_MS));
    xep_ucp_lock(transport);
    for (uint32_t rank = 0; rank < transport->nranks; rank++)
        if (has_socket(&transport->peers[rank]))
            (void)xep_ucp_message_send_empty(&transport->ctl->links[rank], XEP_UCP_GOODBYE);
    while (!all_have_left(transport) && xep_backoff_wait(&backoff, atomic_load(&transport->super.moves)))
        xep_ucp_advance(transport);
    xep_ucp_unlock(transport);
}

/*
 * Endpoints end with the worker, without a flush of their own: the heaps were flushed, and nobody waits for more. Ranks
 * that leave later would see an error in such a flush when this rank is gone, and UCX would print it.
 */
static void transport_close(xep_transport_t *base)
{
    xep_ucp_transport_t *transport = transport_of(base);
    if (transport == NULL) return;
    if (transport->worker == NULL) {
        free(transport);
        return;
    }
    xep_ucp_heartbeat_stop(transport);
    say_goodbye(transport);
    if (transport->ctl != NULL) xep_ucp_heap_close(&transport->ctl->super);
    for (xep_ucp_heap_t *heap = transport->abandoned; heap != NULL; heap = heap->next) xep_ucp_heap_unlink(heap);
    ucp_worker_destroy(transport->worker);
    for (xep_ucp_heap_t *heap = transport->abandoned, *next; heap != NULL; heap = next) {
        next = heap->next;
        xep_ucp_heap_free(heap);
    }
    ucp_cleanup(transport->context);
    xep_ucp_ops_close(transport);
    free(transport->heaps);
    free(transport->peers);
    free(transport->addresses);
    free((void *)(uintptr_t)base->address);
    pthread_mutex_destroy(&transport->lock);
    free(transport);
}

static void transport_shared_room(xep_transport_t *base, uint64_t bytes, xep_shared_room_t rooms[XEP_SHARED_KINDS])
{
    memset(rooms, 0, XEP_SHARED_KINDS * sizeof *rooms);
    if (transport_of(base)->shares_memory) xep_ucp_shared_room(&transport_of(base)->shared, bytes, rooms);
}

/* The handler of messages is set before the address is published: a peer may send from then on. */
static xep_status_t transport_start(xep_transport_t *base, const xep_neighbours_t *neighbours,
                                    const xep_whereabouts_t *where)
{
    xep_ucp_transport_t *transport = transport_of(base);
    xep_ucp_segments_t before;
    if (!xep_ucp_settings_name_memory()) transport->shared = xep_ucp_shared_agree(neighbours);
    transport->copied_below = xep_ucp_settings_copied_below(where, &transport->shared);
    transport->shares_memory = transport->shared.expected && transport->map != XEP_MAP_NEVER;
    xep_ucp_memory_list_segments(&before);
    xep_status_t status = xep_ucp_context_open(&transport->shared, where, &transport->context, &transport->worker);
    xep_ucp_memory_keep_to_user(&before);
    if (status == XEP_OK) status = xep_ucp_message_listen(transport);
    return status == XEP_OK ? xep_ucp_address_make(transport) : status;
}

static const xep_transport_ops_t transport_ops = {
    .shared_look = xep_ucp_shared_look,
    .start = transport_start,
    .connect = transport_connect,
    .meet = xep_ucp_meet,
    .shared_room = transport_shared_room,
    .heap_open = xep_ucp_heap_open,
    .heap_connect = xep_ucp_heap_connect,
    .heap_close = xep_ucp_heap_close,
    .heap_fence_off = xep_ucp_heap_fence_off,
    .heap_is_behind = xep_ucp_heap_is_behind,
    .heap_twin = xep_ucp_direct_open,
    .heap_put_direct = xep_ucp_direct_put,
    .progress = transport_progress,
    .ctl = xep_ucp_ctl,
    .ctl_has_left = xep_ucp_ctl_has_left,
    .describe = transport_describe,
    .watch = xep_ucp_heartbeat_start,
    .is_gone = transport_is_gone,
    .close = transport_close,
};

xep_status_t xep_ucp_transport_open(const xep_config_t *config, xep_transport_t **transport_p)
{
    xep_ucp_transport_t *transport = calloc(1, sizeof *transport);
    if (transport == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for a transport");
    transport->super.ops = &transport_ops;
    pthread_mutex_init(&transport->lock, NULL);
    transport->version = xep_ucp_version_number();
    transport->fence_orders =
        STORES_KEEP_ORDER && transport->version < FENCE_MAY_BLOCK && !xep_ucp_settings_has_second_protocols();
    transport->map = config->map;
    transport->put = config->put;
    transport->inflight = config->inflight;
    transport->stream_bytes = xep_config_stream(config);
    xep_ucp_leftovers_remove(xep_ucp_shared_folder());
    *transport_p = &transport->super;
    return XEP_OK;
}
