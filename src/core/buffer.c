/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * What all calls on a buffer share: one thread at a time is in it, and a broken buffer says why it takes no more
 * operations.
 */
#include "buffer.h"

#include <sched.h>

void xep_buffer_enter(xep_buffer_t *buffer)
{
    while (atomic_flag_test_and_set_explicit(&buffer->entered, memory_order_acquire)) sched_yield();
}

void xep_buffer_leave(xep_buffer_t *buffer)
{
    atomic_flag_clear_explicit(&buffer->entered, memory_order_release);
}

/* An abort counts more than a break: there is nothing that a reset could do. */
xep_status_t xep_buffer_usable(const xep_buffer_t *buffer)
{
    xep_status_t status = xep_group_usable(buffer->group);
    if (status == XEP_OK && buffer->broken)
        status = xep_fail(XEP_ERR_BROKEN, "the buffer needs xep_buffer_reset() after: %s", buffer->broken_reason);
    return status;
}
