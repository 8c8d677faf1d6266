/* SPDX-License-Identifier: BSD-3-Clause */

/* The transport: opening, the exchange of addresses, progress, closing. */

#include "ucp_transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backoff.h"
#include "error.h"
#include "ucp_context.h"
#include "ucp_direct.h"
#include "ucp_heap.h"
#include "ucp_heartbeat.h"
#include "ucp_link.h"
#include "ucp_memory.h"
#include "ucp_message.h"
#include "ucp_op.h"
#include "ucp_peer.h"
#include "ucp_settings.h"
#include "ucp_shared.h"

enum { PROBE_BYTES = 4096, FENCE_MAY_BLOCK = 114 };
#if defined(__x86_64__)
enum { STORES_KEEP_ORDER = 1 };
#else
enum { STORES_KEEP_ORDER = 0 };
#endif

static xep_ucp_transport_t *transport_of(xep_transport_t *transport)
{
    return (xep_ucp_transport_t *)transport;
}

static void transport_address(xep_transport_t *base, const void **address_p, size_t *bytes_p)
{
    *address_p = transport_of(base)->address;
    *bytes_p = transport_of(base)->address_bytes;
}

/* The probe is a small heap that every rank has from the start, to find out how peers are reached. */
static xep_status_t connect_probe(xep_ucp_transport_t *transport, const size_t *bytes, const uint8_t *peers)
{
    uint8_t *copy = transport->addresses;
    const void **keys = calloc(transport->nranks, sizeof *keys);
    size_t *key_bytes = calloc(transport->nranks, sizeof *key_bytes);
    xep_status_t status = XEP_OK;
    if (keys == NULL || key_bytes == NULL)
        status = xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u ranks", transport->nranks);
    for (uint32_t rank = 0; status == XEP_OK && rank < transport->nranks; rank++) {
        status = xep_ucp_address_take(transport, rank, copy, bytes[rank], peers[rank], &keys[rank], &key_bytes[rank]);
        copy += bytes[rank];
    }
    if (status == XEP_OK) status = xep_ucp_heap_connect(&transport->probe->super, keys, key_bytes);
    free(key_bytes);
    free(keys);
    return status;
}

static xep_status_t copy_addresses(xep_ucp_transport_t *transport, const void *const *addresses, const size_t *bytes)
{
    size_t total = 0;
    uint8_t *copy;
    for (uint32_t rank = 0; rank < transport->nranks; rank++) total += bytes[rank];
    transport->peers = calloc(transport->nranks, sizeof transport->peers[0]);
    transport->addresses = copy = malloc(total);
    if (transport->peers == NULL || copy == NULL)
        return xep_fail(XEP_ERR_NO_MEMORY, "no memory for the addresses of %u ranks", transport->nranks);
    for (uint32_t rank = 0; rank < transport->nranks; rank++) {
        memcpy(copy, addresses[rank], bytes[rank]);
        copy += bytes[rank];
    }
    return XEP_OK;
}

/* Endpoints are made later, when a rank is first reached. */
static xep_status_t transport_connect(xep_transport_t *base, uint32_t rank, uint32_t nranks,
                                      const void *const *addresses, const size_t *bytes, const uint8_t *peers)
{
    xep_ucp_transport_t *transport = transport_of(base);
    xep_status_t status;
    xep_ucp_lock(transport);
    transport->rank = rank;
    transport->nranks = nranks;
    status = copy_addresses(transport, addresses, bytes);
    if (status == XEP_OK) status = connect_probe(transport, bytes, peers);
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

static const char *describe(xep_ucp_peer_t *peer)
{
    if (peer->rank == peer->transport->rank) return "self";
    if (peer->reach == XEP_UCP_LINK_NEW) (void)xep_ucp_link_open(&peer->transport->probe->links[peer->rank]);
    return peer->text;
}

static const char *transport_describe(xep_transport_t *base, uint32_t rank)
{
    xep_ucp_transport_t *transport = transport_of(base);
    const char *text;
    if (rank >= transport->nranks) return "no such rank";
    xep_ucp_lock(transport);
    text = describe(&transport->peers[rank]);
    xep_ucp_unlock(transport);
    return text;
}

static xep_status_t transport_watch(xep_transport_t *base, const uint8_t *ranks, int32_t interval_ms)
{
    return xep_ucp_heartbeat_start(transport_of(base), ranks, interval_ms);
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
            (void)xep_ucp_message_send_empty(&transport->probe->links[rank], XEP_UCP_GOODBYE);
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
    if (transport->probe != NULL) xep_ucp_heap_close(&transport->probe->super);
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
    free(transport->address);
    pthread_mutex_destroy(&transport->lock);
    free(transport);
}

static void transport_shared_room(xep_transport_t *base, uint64_t bytes, xep_shared_room_t rooms[XEP_SHARED_KINDS])
{
    memset(rooms, 0, XEP_SHARED_KINDS * sizeof *rooms);
    if (transport_of(base)->shares_memory) xep_ucp_shared_room(&transport_of(base)->shared, bytes, rooms);
}

static void transport_shared_look(xep_transport_t *base, uint64_t ranks[XEP_SHARED_KINDS])
{
    (void)base;
    xep_ucp_shared_look(ranks);
}

static xep_status_t open_probe(xep_ucp_transport_t *transport)
{
    xep_heap_wire_t *probe;
    xep_status_t status = xep_ucp_heap_open(&transport->super, PROBE_BYTES, &probe);
    if (status == XEP_OK) transport->probe = (xep_ucp_heap_t *)probe;
    return status;
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
    if (status == XEP_OK) status = open_probe(transport);
    return status == XEP_OK ? xep_ucp_address_make(transport) : status;
}

static const xep_transport_ops_t transport_ops = {
    .name = "ucp",
    .shared_look = transport_shared_look,
    .start = transport_start,
    .address = transport_address,
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
    .watch = transport_watch,
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
