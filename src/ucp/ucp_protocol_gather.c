/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * All bytes go in messages of up to 120 KB. A put is appended to the open bounce buffer of its link: to its last run if
 * it continues that, else as a new run. The bounce buffer is sent when it is full, when a signal follows, or at a
 * flush; a message then carries the signal, too. The receiver stores each run where it belongs, and signals in the
 * order of their messages, which have numbers: see ucp_intake.h. A signal that nobody waits for yet is held for the
 * next message.
 */

#include "ucp_protocol.h"

#include <string.h>

#include "error.h"
#include "ucp_link.h"
#include "ucp_memory.h"
#include "ucp_message.h"
#include "ucp_op.h"

enum { LEAST_SPLIT = 1024 /* a run is split only if at least so many bytes of it fit the message */ };

static bool continues(const xep_ucp_bounce_t *bounce, uint64_t offset)
{
    if (bounce->nruns == 0) return false;
    const xep_ucp_run_t *last = &bounce->runs[bounce->nruns - 1];
    return last->offset + last->bytes == offset;
}

/* bytes that can be added at offset: several runs have headers beside them */
static size_t room_at(const xep_ucp_link_t *link, uint64_t offset, size_t wanted)
{
    const xep_ucp_bounce_t *bounce = link->bounce;
    bool same_run = continues(bounce, offset);
    size_t used, room;
    /*
     * an empty bounce buffer takes any put that is gathered: so a put needs one bounce buffer more than the open one,
     * never two
     */
    if (bounce->nruns == 0) return XEP_UCP_MESSAGE_BYTES;
    if (bounce->nruns == 1 && same_run) return XEP_UCP_MESSAGE_BYTES - bounce->bytes;
    if (bounce->nruns == XEP_UCP_MESSAGE_RUNS && !same_run) return 0;
    used = bounce->bytes + (bounce->nruns + !same_run) * sizeof(xep_ucp_run_t);
    room = used < XEP_UCP_MESSAGE_BYTES ? XEP_UCP_MESSAGE_BYTES - used : 0;
    return room >= wanted || room >= LEAST_SPLIT ? room : 0;
}

/* A put that continues the last run extends it: consecutive rows need no headers of their own. */
static void append(xep_ucp_bounce_t *bounce, uint64_t offset, const void *src, size_t bytes)
{
    if (continues(bounce, offset)) bounce->runs[bounce->nruns - 1].bytes += bytes;
    else bounce->runs[bounce->nruns++] = (xep_ucp_run_t){offset, bytes};
    memcpy(bounce->data + bounce->bytes, src, bytes);
    bounce->bytes += bytes;
}

/* the link's bounce buffer as a message; there may be none when op is a signal */
static xep_status_t send_message(xep_ucp_link_t *link, xep_ucp_op_t *op)
{
    xep_ucp_bounce_t *bounce = link->bounce;
    size_t head = 0;
    link->bounce = NULL;
    if (bounce == NULL) return xep_ucp_message_send(op, NULL, 0);
    op->bounce = bounce;
    op->message.offset = bounce->runs[0].offset;
    if (bounce->nruns > 1) {
        op->message.nruns = bounce->nruns;
        head = bounce->nruns * sizeof(xep_ucp_run_t);
        memcpy(bounce->data - head, bounce->runs, head);
    }
    return xep_ucp_message_send(op, bounce->data - head, head + bounce->bytes);
}

/* one message with the bytes and the signal */
static xep_status_t send_signal(xep_ucp_link_t *link, uint64_t offset, uint64_t value)
{
    xep_ucp_op_t *op = xep_ucp_op_get(link, link->bounce == NULL ? 0 : link->bounce->bytes);
    if (op == NULL) return XEP_ERR_NO_MEMORY;
    op->message.signal_offset = offset;
    op->message.signal_value = value;
    return send_message(link, op);
}

/* A held signal goes with any message. */
static xep_status_t push(xep_ucp_link_t *link)
{
    if (link->bounce == NULL && link->held_offset == XEP_UCP_NO_SIGNAL) return XEP_OK;
    return send_signal(link, XEP_UCP_NO_SIGNAL, 0);
}

/*
 * has_room() has made sure that there is one; but a heap that spares ranks copies all it sends, and may have lost
 * bounce buffers to ranks that are gone. Then more are made; the bytes in flight bound how many.
 */
static xep_ucp_bounce_t *take_bounce(xep_ucp_heap_t *heap)
{
    enum { GROW_BOUNCES = 16 };
    if (heap->pool.free == NULL && heap->super.spares && xep_ucp_pool_grow(&heap->pool, GROW_BOUNCES) != XEP_OK)
        return NULL;
    return xep_ucp_pool_get(&heap->pool);
}

/* adds to the bounce buffer, sending it and taking another when it is full */
static xep_status_t gather(xep_ucp_link_t *link, uint64_t offset, const uint8_t *src, size_t bytes)
{
    while (bytes != 0) {
        size_t room, n;
        xep_status_t status;
        if (link->bounce == NULL) link->bounce = take_bounce(link->heap);
        if (link->bounce == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no bounce buffer left for %zu bytes", bytes);
        room = room_at(link, offset, bytes);
        n = room < bytes ? room : bytes;
        if (n != 0) append(link->bounce, offset, src, n);
        offset += n;
        src += n;
        bytes -= n;
        if (bytes == 0) break;
        status = push(link);
        if (status != XEP_OK) return status;
    }
    xep_ucp_link_touch(link);
    return XEP_OK;
}

static bool has_room(xep_ucp_link_t *link, size_t bytes)
{
    const xep_ucp_pool_t *pool = &link->heap->pool;
    if (!xep_ucp_rma_has_room(link, bytes)) return false;
    return bytes == 0 || bytes >= XEP_UCP_MESSAGE_BYTES || pool->free != NULL || link->heap->super.spares;
}

/* fragments of the caller's memory, each a message */
static xep_status_t send_fragments(xep_ucp_link_t *link, uint64_t offset, const uint8_t *src, size_t bytes)
{
    while (bytes != 0) {
        size_t n = bytes < XEP_UCP_MESSAGE_BYTES ? bytes : XEP_UCP_MESSAGE_BYTES;
        xep_ucp_op_t *op = xep_ucp_op_get(link, n);
        xep_status_t status;
        if (op == NULL) return XEP_ERR_NO_MEMORY;
        op->message.offset = offset;
        op->message.signal_offset = XEP_UCP_NO_SIGNAL;
        status = xep_ucp_message_send(op, src, n);
        if (status != XEP_OK) return status;
        offset += n;
        src += n;
        bytes -= n;
    }
    return XEP_OK;
}

/*
 * A put that fills a bounce buffer alone is not copied, unless the heap spares ranks: UCX may then still have the put
 * when the operation has ended without its rank, and the caller has its memory back. After a message, arrived messages
 * are taken in: else ranks that send to each other fill the sockets first, then read (exchange of 58 MB: 23 ms in place
 * of 29).
 */
static xep_status_t put(xep_ucp_link_t *link, uint64_t offset, const void *src, size_t bytes)
{
    uint64_t sequence = link->sequence;
    xep_status_t status;
    if (bytes < XEP_UCP_MESSAGE_BYTES || link->heap->super.spares) status = gather(link, offset, src, bytes);
    else status = send_fragments(link, offset, src, bytes);
    if (sequence != link->sequence) xep_ucp_advance(link->heap->transport);
    return status;
}

/*
 * At most one signal is held, and no bytes before it: so it may go with any message. That saves a system call for each
 * rank: on TCP loopback, the smallest combine took 7 us in place of 11.
 */
static xep_status_t hold_signal(xep_ucp_link_t *link, uint64_t offset, uint64_t value)
{
    if (link->bounce != NULL || link->held_offset != XEP_UCP_NO_SIGNAL) return send_signal(link, offset, value);
    link->held_offset = offset;
    link->held_value = value;
    xep_ucp_link_touch(link);
    return XEP_OK;
}

const xep_ucp_protocol_t xep_ucp_am = {
    .text = "packed messages",
    .by_messages = true,
    .has_room = has_room,
    .put = put,
    .signal = send_signal,
    .signal_later = hold_signal,
    .push = push,
};
