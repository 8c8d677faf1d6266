/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Shared by all calls on a buffer: one thread at a time holds it, and a broken buffer says why it takes no more
 * operations.
 */
#include "buffer.h"

#include <sched.h>

#include "backoff.h"
#include "group_abort.h"
#include "members.h"
#include "request.h"

static int take(xep_buffer_t *buffer, int as, int *seen_p)
{
    *seen_p = 0;
    return atomic_compare_exchange_strong_explicit(&buffer->entered, seen_p, as, memory_order_acquire,
                                                   memory_order_relaxed);
}

xep_status_t xep_buffer_claim(xep_buffer_t *buffer)
{
    int seen;
    while (!take(buffer, XEP_ENTERED_BY_CALL, &seen)) {
        if (seen & XEP_ENTERED_BY_CALL)
            return xep_fail(XEP_ERR_INVALID, "another thread is in a call on this buffer (one thread at a time)");
        sched_yield();
    }
    return XEP_OK;
}

void xep_buffer_enter(xep_buffer_t *buffer)
{
    int seen;
    xep_backoff_t backoff;
    xep_backoff_begin(&backoff, XEP_BACKOFF_RARE, UINT64_MAX);
    while (!take(buffer, XEP_ENTERED_BY_CALL, &seen)) xep_backoff_wait(&backoff, 0);
}

int xep_buffer_try_enter(xep_buffer_t *buffer)
{
    int seen;
    return take(buffer, XEP_ENTERED_BRIEFLY, &seen);
}

/* Where the other thread leaves before it has been told, this one is told itself, and heeds that as it leaves. */
int xep_buffer_enter_now(xep_buffer_t *buffer, atomic_int *mark)
{
    int seen;
    if (take(buffer, XEP_ENTERED_BRIEFLY, &seen)) return 1;
    atomic_store_explicit(mark, 1, memory_order_release);
    while (!atomic_compare_exchange_strong_explicit(&buffer->entered, &seen,
                                                    seen == 0 ? XEP_ENTERED_BRIEFLY | XEP_ENTERED_MARKED
                                                              : seen | XEP_ENTERED_MARKED,
                                                    memory_order_acq_rel, memory_order_relaxed))
        continue;
    if (seen == 0) xep_buffer_leave(buffer);
    return 0;
}

void xep_buffer_leave(xep_buffer_t *buffer)
{
    const int as = atomic_load_explicit(&buffer->entered, memory_order_relaxed) & ~XEP_ENTERED_MARKED;
    int seen = as;
    while (!atomic_compare_exchange_strong_explicit(&buffer->entered, &seen, 0, memory_order_release,
                                                    memory_order_relaxed)) {
        atomic_fetch_and_explicit(&buffer->entered, ~XEP_ENTERED_MARKED, memory_order_acquire);
        xep_request_take_over(buffer);
        seen = as;
    }
}

/* Acquire, after all loads of an operation: members.h says why. */
xep_status_t xep_buffer_check_in(const xep_buffer_t *buffer)
{
    if (!buffer->goes_on) return XEP_OK;
    if (buffer->members == NULL)
        return xep_members_is_left_on_device(buffer) ? xep_group_fail_out(XEP_OUT_BY_OTHERS) : XEP_OK;
    atomic_thread_fence(memory_order_acquire);
    uint64_t by = atomic_load_explicit(&buffer->members->own->left_out, memory_order_relaxed);
    if (by == 0) return XEP_OK;
    return xep_group_fail_out(by > buffer->shape.nranks ? XEP_OUT_NO_QUORUM : (uint32_t)by - 1);
}

/* An abort counts more than a broken buffer, as a reset cannot help. */
xep_status_t xep_buffer_usable(const xep_buffer_t *buffer)
{
    xep_status_t status = xep_group_usable(buffer->group);
    if (status == XEP_OK) status = xep_buffer_check_in(buffer);
    if (status == XEP_OK && buffer->broken)
        status = xep_fail(XEP_ERR_BROKEN, "the buffer needs xep_buffer_reset() after: %s", buffer->broken_reason);
    return status;
}
