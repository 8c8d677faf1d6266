/* SPDX-License-Identifier: BSD-3-Clause */

/** For whom operations wait, and for how long. All but the reading is called inside xep_buffer_enter(). */
#ifndef XEP_CORE_LATENESS_H
#define XEP_CORE_LATENESS_H

#include "buffer.h"

/** The memory of a buffer with its requests counted. XEP_ERR_NO_MEMORY; what there is, is freed by close. */
xep_status_t xep_lateness_open(xep_buffer_t *buffer);
void xep_lateness_close(xep_buffer_t *buffer);

/** Of a request that begins. */
xep_late_t xep_lateness_of(const xep_buffer_t *buffer, uint32_t request);

/** Whether op's mode found ranks late when it looked last, and no time counts for them yet. */
static inline int xep_lateness_is_new(const xep_op_t *op)
{
    return op->late.count != 0 && op->late.since_ns == 0;
}

/** A caller waits for op: for the ranks that are late, time counts from now_ns on. */
static inline void xep_lateness_begin(xep_op_t *op, uint64_t now_ns)
{
    if (xep_lateness_is_new(op)) op->late.since_ns = now_ns;
}

/** No caller waits any more: those that are late have their time until now. */
void xep_lateness_pause(xep_op_t *op);

/** Adds the waits of a request that ends to the buffer's, and to those the caller wanted. */
void xep_lateness_book(xep_request_t *req);

/** xep_buffer_waits(), from any thread. */
void xep_lateness_read(const xep_buffer_t *buffer, xep_op_kind_t kind, const xep_waits_t *waits);

#endif
