/* SPDX-License-Identifier: BSD-3-Clause */

/* What a rank says of an operation that it begins, and the hooks of the buffer for that. */
#include <stdlib.h>

#include "announce.h"
#include "error.h"
#include "layout.h"
#include "members.h"
#include "request.h"

/* ---- operations that begin ---- */

static void fill_dispatch(const xep_request_t *req, xep_announced_t *entry)
{
    const xep_dispatch_args_t *args = &req->dispatch;
    entry->has = (args->cached != NULL) * XEP_ANNOUNCED_CACHED | (args->topk_weights != NULL) * XEP_ANNOUNCED_WEIGHTS |
                 (args->nscales != 0) * XEP_ANNOUNCED_SCALES;
    entry->turn = args->cached != NULL ? args->cached->turn : 0;
#define ENTRY_TELL(_name) entry->_name = args->_name;
    XEP_ANNOUNCED_ARGS(ENTRY_TELL)
#undef ENTRY_TELL
    for (uint32_t i = 0; i < args->npayloads; i++) {
        entry->payload_bytes[i] = args->payloads[i].bytes;
        entry->payload_alignment[i] = (uint8_t)args->payloads[i].alignment;
    }
    xep_announce_fill_held(req->buffer, req->handle, entry);
}

/* The outputs of a next piece are those of a combine. */
static void fill_combine(const xep_request_t *req, xep_announced_t *entry)
{
    const xep_combine_args_t *args = &req->combine;
    const int weights = args->topk_weights != NULL || args->out_weights != NULL;
    entry->has = weights * XEP_ANNOUNCED_WEIGHTS | (req->op.combine != NULL) * XEP_ANNOUNCED_OUTPUTS;
    entry->turn = req->handle->turn;
    entry->flags = args->flags;
    entry->hidden = args->hidden;
    entry->dtype = args->dtype;
    entry->quant = args->quant;
    entry->quant_scale = args->quant_scale;
}

static void tell(const xep_request_t *req)
{
    xep_buffer_t *buffer = req->buffer;
    xep_announced_t *entry = xep_announce_entry(buffer, buffer->shape.rank, req->op.epoch);
    entry->kind = req->op.kind;
    entry->step = buffer->announce->step;
    entry->layers = 0;
    if (req->op.kind == XEP_OP_DISPATCH) fill_dispatch(req, entry);
    else fill_combine(req, entry);
    xep_announce_put(buffer, entry, req->op.epoch);
}

static xep_status_t begin(xep_request_t *req)
{
    xep_buffer_t *buffer = req->buffer;
    xep_announce_t *announce = buffer->announce;
    const int is_dispatch = req->op.kind == XEP_OP_DISPATCH;
    xep_status_t status = xep_announce_check_begin(req);
    if (status != XEP_OK) return status;
    if (!xep_announce_is_spared(buffer, req->op.epoch)) {
        if (announce->told < req->op.epoch) tell(req);
        if (req->op.kind != XEP_OP_NEXT) announce->last[req->op.kind] = req->op.epoch;
    }
    announce->boundary = (announce->step + 1) & XEP_STEP_MASK;
    announce->dispatches += is_dispatch;
    if (is_dispatch && announce->in_layers && announce->early >= req->op.epoch) announce->oldest = buffer->turn;
    return buffer->members != NULL ? xep_members_choose(req) : XEP_OK;
}

/* It waits for all ranks before it begins: those that serve hear of it before that. If it fails, it never was. */
static xep_status_t take_dispatch(xep_request_t *req)
{
    xep_buffer_t *buffer = req->buffer;
    xep_status_t status;
    if ((req->dispatch.flags & XEP_DISPATCH_BALANCE) == 0 || req->dispatch.cached != NULL)
        return buffer->announce->take(req);
    req->op.epoch = buffer->epoch + 1;
    if ((status = xep_announce_check_begin(req)) != XEP_OK) return status;
    if (!xep_announce_is_spared(buffer, req->op.epoch) && buffer->announce->told < req->op.epoch) {
        tell(req);
        buffer->announce->told = req->op.epoch;
    }
    status = buffer->announce->take(req);
    if (status != XEP_OK) xep_announce_failed(buffer, req->op.epoch);
    return status;
}

/* ---- opening and closing ---- */

/* With an owner map this has been done by then. */
static xep_status_t check_indices(xep_request_t *req)
{
    if (req->dispatch.cached != NULL) return XEP_OK;
    return xep_layout_count_selections(&req->dispatch, req->buffer->shape.experts, NULL);
}

/* Layers hold no handles but that of the last dispatch: zeros. */
static int allocate(xep_announce_t *announce, const xep_shape_t *shape)
{
    announce->entry_bytes = xep_announce_entry_bytes(shape);
    announce->row = calloc(shape->nranks, sizeof *announce->row);
    announce->served = calloc(shape->slots, sizeof *announce->served);
    for (int kind = 0; kind < 2; kind++)
        if ((announce->layer[kind] = calloc(1, announce->entry_bytes)) == NULL) return -1;
    return announce->row == NULL || announce->served == NULL ? -1 : 0;
}

xep_status_t xep_announce_open(xep_buffer_t *buffer)
{
    const xep_shape_t *shape = &buffer->shape;
    xep_wire_t *wire = &buffer->heap->wire;
    xep_announce_t *announce = calloc(1, sizeof *announce);
    buffer->announce = announce;
    if (announce == NULL || allocate(announce, shape) != 0)
        return xep_fail(XEP_ERR_NO_MEMORY, "no memory for the announcements of %u ranks", shape->nranks);
    for (uint32_t r = 0; r < shape->nranks; r++) {
        char *mapped = wire->ops->map(wire, r), *base = mapped != NULL ? mapped : buffer->heap->base;
        announce->row[r] = base + buffer->areas.announce + r * xep_announce_row_bytes(shape);
    }
    buffer->before_mode = begin;
    announce->take = buffer->take_dispatch;
    if (announce->take == NULL) buffer->take_dispatch = check_indices;
    if (buffer->balancer != NULL) buffer->take_dispatch = take_dispatch;
    return XEP_OK;
}

void xep_announce_close(xep_announce_t *announce)
{
    if (announce == NULL) return;
    for (int kind = 0; kind < 2; kind++) free(announce->layer[kind]);
    free(announce->served);
    free(announce->row);
    free(announce);
}
