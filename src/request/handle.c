/* SPDX-License-Identifier: BSD-3-Clause */

#include "handle.h"

#include "buffer.h"

void xep_handle_set_state(xep_handle_t *handle, xep_handle_state_t state)
{
    atomic_store_explicit(&handle->state, state, memory_order_release);
}

/* A scan: a buffer has a few. */
xep_handle_t *xep_handle_take(xep_buffer_t *buffer)
{
    xep_handle_t *best = NULL;
    for (uint32_t s = 0; s < buffer->shape.slots; s++) {
        xep_handle_t *h = &buffer->handles[s];
        if (h->state == XEP_HANDLE_FREE && (best == NULL || h->turn > best->turn)) best = h;
    }
    return best;
}

/* A rank with any rows has some in the first piece: so the first outputs say whether there are weights. */
void xep_handle_note_outputs(xep_handle_t *handle, const xep_combine_args_t *outputs)
{
    xep_outputs_t *kind = &handle->outputs;
    if (kind->state != XEP_OUTPUTS_UNKNOWN) return;
    kind->state = outputs == NULL ? XEP_OUTPUTS_NONE : XEP_OUTPUTS_TAKEN;
    if (outputs == NULL) return;
    kind->dtype = outputs->dtype;
    kind->hidden = outputs->hidden;
    kind->weighted = outputs->topk_weights != NULL;
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
