/* SPDX-License-Identifier: BSD-3-Clause */

#include "handle.h"

#include "buffer.h"

void xep_handle_set_state(xep_handle_t *handle, xep_handle_state_t state)
{
    atomic_store_explicit(&handle->state, state, memory_order_release);
}

/* The turn stays: it tells which slot was used last. */
void xep_handle_give_back(xep_handle_t *handle)
{
    xep_buffer_t *buffer = handle->buffer;
    if (buffer->shape.sends_in_place && buffer->mode != NULL)
        buffer->plugin.plugin->place->release(buffer->mode, handle->slot);
    xep_handle_set_state(handle, XEP_HANDLE_FREE);
    handle->released = 0;
    handle->awaited = 0;
    handle->in_flight = NULL;
    handle->combine_input = NULL;
    handle->has_input = 0;
}

void xep_handle_give_back_if_unused(xep_handle_t *handle)
{
    if (handle->released && handle->in_flight == NULL && handle->awaited == 0) xep_handle_give_back(handle);
}
