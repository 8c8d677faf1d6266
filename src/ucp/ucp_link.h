/* SPDX-License-Identifier: BSD-3-Clause */

/** A heap on a rank: how it is reached, which is found out at first use. */
#ifndef XEP_UCP_LINK_H
#define XEP_UCP_LINK_H

#include "ucp_objects.h"

/** XEP_OK: a link whose peer is not mapped may be used. */
xep_status_t xep_ucp_link_check(xep_ucp_link_t *link);

/** Finds out how the rank is reached. After it link->state is not NEW. */
xep_status_t xep_ucp_link_open(xep_ucp_link_t *link);
void xep_ucp_link_close(xep_ucp_link_t *link);

/** A heap that spares ranks goes on without this one. */
void xep_ucp_link_fence_off(xep_ucp_link_t *link);

/** Sends what the links of a heap hold back. */
xep_status_t xep_ucp_links_push(xep_ucp_heap_t *heap);

/* ---- ucp_link_signals.c ---- */

/*
 * The signals of a link that wait for the puts before them. UCX orders nothing: a signal that follows puts is queued
 * until a flush of the endpoint says that they are in the peer's memory.
 */

/** Queues a signal and sends what may be sent. */
xep_status_t xep_ucp_signals_queue(xep_ucp_link_t *link, uint64_t offset, uint64_t value);

/** Sends op's signal, op->offset and op->value, as a put of its own. */
xep_status_t xep_ucp_signal_post(xep_ucp_op_t *op);

/** Sends the queued signals whose puts are flushed; flushes for the next one. */
xep_status_t xep_ucp_signals_advance(xep_ucp_link_t *link);

/** Drops the queued signals, as the heap is broken or the rank gone. */
void xep_ucp_signals_drop(xep_ucp_link_t *link);

/** Flushes all puts so far. XEP_OK: link->flushed covers them already; XEP_INPROGRESS: it will. */
xep_status_t xep_ucp_link_flush(xep_ucp_link_t *link);

/** Has the next round of progress advance its signals. */
void xep_ucp_link_make_ready(xep_ucp_link_t *link);

/** Notes that something was sent or held back. */
void xep_ucp_link_touch(xep_ucp_link_t *link);

/* ---- a round of the worker ---- */

/** Makes progress, then advances the links for which something has become possible. */
void xep_ucp_advance(xep_ucp_transport_t *transport);

#endif
