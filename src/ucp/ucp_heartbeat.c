/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The thread is in UCX for some microseconds of each interval, under the lock of the worker. Messages that arrive
 * meanwhile are handled as always.
 */
#include "ucp_heartbeat.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backoff.h"
#include "error.h"
#include "process.h"
#include "ucp_link.h"
#include "ucp_message.h"
#include "ucp_peer.h"

enum { MOST_ROUNDS = 256 }; /* of progress in a beat: mostly a few messages have come */

struct xep_ucp_heartbeat {
    xep_ucp_transport_t *transport;
    int32_t interval_ms;
    pthread_t thread;
    pthread_mutex_t lock; /* of stop */
    pthread_cond_t cond;  /* of the monotonic clock */
    int stop;
};

/* ---- a beat: under the transport's lock ---- */

static void take_in(xep_ucp_transport_t *transport)
{
    unsigned before;
    int rounds = 0;
    do {
        before = atomic_load_explicit(&transport->super.moves, memory_order_relaxed);
        xep_ucp_advance(transport);
    } while (before != atomic_load_explicit(&transport->super.moves, memory_order_relaxed) && ++rounds < MOST_ROUNDS);
}

/* Makes no connection: a rank that was never reached has nothing of this one. */
static void look_at_peer(const xep_ucp_heartbeat_t *heartbeat, xep_ucp_peer_t *peer)
{
    if (!peer->watched || peer->endpoint == NULL || peer->failed != UCS_OK || peer->left) return;
    peer->silent = peer->heard ? 0 : peer->silent + 1;
    peer->heard = false;
    if (peer->silent < XEP_UCP_BEATS) {
        (void)xep_ucp_message_send_empty(&heartbeat->transport->ctl->links[peer->rank], XEP_UCP_NO_HEAP);
        return;
    }
    char why[96];
    snprintf(why, sizeof why, "nothing was heard of it for %.1f s (XEP_HEARTBEAT)",
             (double)heartbeat->interval_ms * XEP_UCP_BEATS / 1e3);
    xep_ucp_peer_lose(peer, UCS_ERR_ENDPOINT_TIMEOUT, why);
}

static void beat(const xep_ucp_heartbeat_t *heartbeat)
{
    xep_ucp_transport_t *transport = heartbeat->transport;
    xep_ucp_lock(transport);
    take_in(transport);
    for (uint32_t rank = 0; rank < transport->nranks; rank++) look_at_peer(heartbeat, &transport->peers[rank]);
    xep_ucp_unlock(transport);
}

/* ---- the thread ---- */

/* The interval counts from the end of a beat: a late beat is not made up for, as the others' may be late, too. */
static void *beat_until_stopped(void *arg)
{
    xep_ucp_heartbeat_t *heartbeat = arg;
    pthread_mutex_lock(&heartbeat->lock);
    while (!heartbeat->stop) {
        struct timespec next = xep_clock_at(xep_clock_ns() + (uint64_t)heartbeat->interval_ms * 1000000);
        while (!heartbeat->stop && pthread_cond_timedwait(&heartbeat->cond, &heartbeat->lock, &next) == 0) continue;
        if (heartbeat->stop) break;
        pthread_mutex_unlock(&heartbeat->lock);
        beat(heartbeat);
        pthread_mutex_lock(&heartbeat->lock);
    }
    pthread_mutex_unlock(&heartbeat->lock);
    return NULL;
}

static xep_ucp_heartbeat_t *heartbeat_new(xep_ucp_transport_t *transport, int32_t interval_ms)
{
    xep_ucp_heartbeat_t *heartbeat = calloc(1, sizeof *heartbeat);
    if (heartbeat == NULL) return NULL;
    heartbeat->transport = transport;
    heartbeat->interval_ms = interval_ms;
    pthread_mutex_init(&heartbeat->lock, NULL);
    xep_cond_open(&heartbeat->cond);
    return heartbeat;
}

static void heartbeat_free(xep_ucp_heartbeat_t *heartbeat)
{
    pthread_cond_destroy(&heartbeat->cond);
    pthread_mutex_destroy(&heartbeat->lock);
    free(heartbeat);
}

xep_status_t xep_ucp_heartbeat_start(xep_transport_t *base, const uint8_t *ranks, int32_t interval_ms)
{
    xep_ucp_transport_t *transport = (xep_ucp_transport_t *)base;
    xep_ucp_heartbeat_t *heartbeat = heartbeat_new(transport, interval_ms);
    if (heartbeat == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for a heartbeat");
    xep_ucp_lock(transport);
    for (uint32_t rank = 0; rank < transport->nranks; rank++) transport->peers[rank].watched = ranks[rank] != 0;
    xep_ucp_unlock(transport);
    int ret = xep_thread_start(&heartbeat->thread, beat_until_stopped, heartbeat);
    if (ret != 0) {
        heartbeat_free(heartbeat);
        return xep_fail(XEP_ERR_NO_MEMORY, "cannot start the heartbeat: %s", strerror(ret));
    }
    transport->heartbeat = heartbeat;
    return XEP_OK;
}

void xep_ucp_heartbeat_stop(xep_ucp_transport_t *transport)
{
    xep_ucp_heartbeat_t *heartbeat = transport->heartbeat;
    if (heartbeat == NULL) return;
    transport->heartbeat = NULL;
    pthread_mutex_lock(&heartbeat->lock);
    heartbeat->stop = 1;
    pthread_cond_signal(&heartbeat->cond);
    pthread_mutex_unlock(&heartbeat->lock);
    pthread_join(heartbeat->thread, NULL);
    heartbeat_free(heartbeat);
}
