/* SPDX-License-Identifier: BSD-3-Clause */

/* Operations that are announced before they begin: the next one, or all of the layers that follow in the step. */
#include <string.h>

#include "announce.h"
#include "error.h"
#include "request.h"

/* ---- telling ---- */

/* Layers are dispatch, combine, and so on. */
static xep_op_kind_t early_kind(const xep_announce_t *announce, uint64_t epoch)
{
    return announce->in_layers && (announce->early - epoch) % 2 == 0 ? XEP_OP_COMBINE : XEP_OP_DISPATCH;
}

static xep_status_t fail_early(const xep_announce_t *announce, uint64_t epoch)
{
    return xep_fail(XEP_ERR_INVALID, "this rank has announced a %s (xep_announce_%s()): begin it first",
                    early_kind(announce, epoch) == XEP_OP_COMBINE ? "combine of its last dispatch" : "dispatch",
                    announce->in_layers ? "layers" : "dispatch");
}

/*
 * The last layer is told, so that its arguments can be repeated; and so is what begins before the operation before it
 * has ended, as that may fail.
 */
int xep_announce_is_spared(const xep_buffer_t *buffer, uint64_t epoch)
{
    return epoch > buffer->announce->told && epoch <= buffer->announce->untold && buffer->active == 0;
}

xep_status_t xep_announce_check(const xep_buffer_t *buffer)
{
    const uint64_t next = buffer->epoch + 1;
    return buffer->announce->early < next ? XEP_OK : fail_early(buffer->announce, next);
}

/* Of an announced dispatch, or combine of the last one; and with a handle that ranks that serve have not released. */
xep_status_t xep_announce_check_begin(const xep_request_t *req)
{
    const xep_buffer_t *buffer = req->buffer;
    const xep_announce_t *announce = buffer->announce;
    const int is_dispatch = req->op.kind == XEP_OP_DISPATCH;
    const xep_handle_t *used = is_dispatch ? req->dispatch.cached : req->handle;
    const int is_late = used != NULL && used->turn < announce->oldest;
    if (announce->early >= req->op.epoch &&
        (req->op.kind != early_kind(announce, req->op.epoch) || (!is_dispatch && is_late)))
        return fail_early(announce, req->op.epoch);
    if (!is_late) return XEP_OK;
    return xep_fail(XEP_ERR_INVALID, "invalid handle: ranks that serve have released it since xep_announce_layers()");
}

/* What this rank has said of its last operation of a kind; NULL: there is none, or it was written over. */
static const xep_announced_t *last_of(const xep_buffer_t *buffer, xep_op_kind_t kind)
{
    const uint64_t last = buffer->announce->last[kind], next = buffer->epoch + 1;
    if (last == 0 || next + 1 - last >= xep_announce_entries(&buffer->shape)) return NULL;
    return xep_announce_entry(buffer, buffer->shape.rank, last);
}

static xep_announced_t *repeat(const xep_buffer_t *buffer, const xep_announced_t *last, uint64_t epoch)
{
    xep_announced_t *entry = xep_announce_entry(buffer, buffer->shape.rank, epoch);
    memcpy(&entry->kind, &last->kind, offsetof(xep_announced_t, held) - offsetof(xep_announced_t, kind));
    entry->step = buffer->announce->step;
    entry->layers = 0;
    entry->turn = buffer->turn + buffer->deferred;
    return entry;
}

/* All others serve, and so until the step ends: none of them needs to hear of what follows from another rank. */
static int works_alone(const xep_buffer_t *buffer)
{
    for (uint32_t r = 0; r < buffer->shape.nranks; r++)
        if (r != buffer->shape.rank && !xep_announce_end_of(buffer, r).serving) return 0;
    return 1;
}

/*
 * The combine of the first layer comes first, so that it is there when the dispatch is found. It is not told as an
 * operation: where its dispatch fails, that epoch is another one's.
 */
static void tell_early(xep_buffer_t *buffer, xep_announced_t *entry, uint32_t layers)
{
    xep_announce_t *announce = buffer->announce;
    const uint64_t epoch = buffer->epoch + 1;
    entry->layers = layers;
    announce->in_layers = layers != 0;
    announce->first = announce->told = epoch;
    announce->early = layers != 0 ? buffer->epoch + UINT64_C(2) * layers : epoch;
    announce->untold = layers != 0 && works_alone(buffer) ? announce->early - 2 : 0;
    if (layers != 0) xep_announce_put(buffer, repeat(buffer, last_of(buffer, XEP_OP_COMBINE), epoch + 1), epoch);
    xep_announce_put(buffer, entry, epoch);
    if (buffer->group->nnodes != 1) xep_announce_push(buffer);
}

xep_status_t xep_announce_early(xep_buffer_t *buffer, uint32_t layers)
{
    const xep_announced_t *dispatch = last_of(buffer, XEP_OP_DISPATCH), *combine = last_of(buffer, XEP_OP_COMBINE);
    xep_status_t status = xep_announce_check(buffer);
    if (status != XEP_OK) return status;
    if (dispatch == NULL || (layers != 0 && combine == NULL))
        return xep_fail(XEP_ERR_INVALID, "the last %u operations of this rank have no %s",
                        xep_announce_entries(&buffer->shape) - 2, dispatch == NULL ? "dispatch" : "combine");
    if (dispatch->has & XEP_ANNOUNCED_CACHED)
        return xep_fail(XEP_ERR_INVALID, "the last dispatch of this rank has the routing of a handle");
    if (layers != 0 && dispatch->flags & XEP_DISPATCH_PIECES)
        return xep_fail(XEP_ERR_INVALID, "the last dispatch of this rank has pieces");
    xep_announced_t *entry = repeat(buffer, dispatch, buffer->epoch + 1);
    if (xep_announce_fill_held(buffer, NULL, entry) == 0)
        return xep_fail(XEP_ERR_BUSY, "all %u slots hold handles (release one first)", buffer->shape.slots);
    tell_early(buffer, entry, layers);
    return XEP_OK;
}

/* ---- hearing ---- */

/* A dispatch, and the combine behind it: of all layers of a rank, which may write these entries over meanwhile. */
static void follow(xep_buffer_t *buffer, uint32_t rank, const xep_announced_t *entry)
{
    xep_announce_t *announce = buffer->announce;
    const xep_announced_t *combine = xep_announce_entry(buffer, rank, buffer->epoch + 2);
    const size_t from = offsetof(xep_announced_t, turn), bytes = offsetof(xep_announced_t, held) - from;
    if (entry->kind != XEP_OP_DISPATCH || !xep_announce_is_of(buffer, combine, buffer->epoch + 1)) return;
    if (combine->kind != XEP_OP_COMBINE) return;
    memcpy((char *)announce->layer[XEP_OP_DISPATCH] + from, (const char *)entry + from, bytes);
    memcpy((char *)announce->layer[XEP_OP_COMBINE] + from, (const char *)combine + from, bytes);
    announce->first = buffer->epoch + 1;
    announce->follows = buffer->epoch + UINT64_C(2) * entry->layers;
}

const xep_announced_t *xep_announce_next(xep_buffer_t *buffer, int *follows_p)
{
    xep_announce_t *announce = buffer->announce;
    const uint64_t epoch = buffer->epoch + 1;
    uint32_t rank;
    *follows_p = announce->follows >= epoch;
    if (!*follows_p) {
        const xep_announced_t *entry = xep_announce_find(buffer, epoch, 0, &rank), *first = entry;
        while (entry != NULL && entry->layers == 0) entry = xep_announce_find(buffer, epoch, rank + 1, &rank);
        if (entry != NULL) follow(buffer, rank, entry);
        return entry != NULL ? entry : first;
    }
    const int is_combine = (announce->follows - epoch) % 2 == 0;
    if (is_combine) announce->layer[XEP_OP_COMBINE]->turn = buffer->turn - 1;
    return announce->layer[is_combine ? XEP_OP_COMBINE : XEP_OP_DISPATCH];
}
