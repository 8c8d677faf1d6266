/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Shared by all calls on a buffer: one thread at a time holds it, and a broken buffer says why it takes no more
 * operations.
 */
#include "buffer.h"

#include <sched.h>

#include "group_abort.h"
#include "members.h"
#include "request.h"

xep_status_t xep_buffer_claim(xep_buffer_t *buffer)
{
    while (pthread_mutex_trylock(&buffer->entered) != 0) {
        if (atomic_load_explicit(&buffer->in_call, memory_order_relaxed))
            return xep_fail(XEP_ERR_INVALID, "another thread is in a call on this buffer (one thread at a time)");
        sched_yield();
    }
    atomic_store_explicit(&buffer->in_call, 1, memory_order_relaxed);
    if (atomic_load_explicit(&buffer->marked, memory_order_relaxed)) xep_request_take_over(buffer);
    return XEP_OK;
}

void xep_buffer_enter(xep_buffer_t *buffer)
{
    pthread_mutex_lock(&buffer->entered);
    atomic_store_explicit(&buffer->in_call, 1, memory_order_relaxed);
    xep_request_take_over(buffer);
}

/* It is no call that waits, so a claim of another thread may wait for its end. */
int xep_buffer_enter_now(xep_buffer_t *buffer, atomic_int *mark)
{
    if (pthread_mutex_trylock(&buffer->entered) == 0) return 1;
    atomic_store_explicit(mark, 1, memory_order_release);
    atomic_store_explicit(&buffer->marked, 1, memory_order_release);
    return 0;
}

void xep_buffer_leave(xep_buffer_t *buffer)
{
    atomic_store_explicit(&buffer->in_call, 0, memory_order_relaxed);
    pthread_mutex_unlock(&buffer->entered);
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
