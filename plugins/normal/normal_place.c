/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Rows that are read in place: which memory of this rank they may be in, who has released them, and whether they stayed
 * as they were. normal_place.h has the protocol.
 */
#include "normal_place.h"

#include <string.h>

static char *begin_of(const normal_t *mode, uint32_t area)
{
    return xep_kit_own(&mode->kit, mode->layout.sends + area * mode->layout.send_bytes);
}

static uint64_t released_offset(const normal_t *mode, uint64_t area, uint32_t rank)
{
    return mode->layout.released + (area * mode->kit.shape->nranks + rank) * sizeof(uint64_t);
}

/* The acquire is for what the user writes there next: it comes after all that peers have read. */
static int is_released(const normal_t *mode, uint32_t area)
{
    const _Atomic uint64_t *words = xep_kit_own(&mode->kit, released_offset(mode, area, 0));
    for (uint32_t r = 0; r < mode->kit.shape->nranks; r++)
        if (mode->kit.base[r] != NULL &&
            atomic_load_explicit(&words[r], memory_order_acquire) < mode->sends[area].epoch)
            return 0;
    return 1;
}

/* one that is released, and not the user's to write; or NORMAL_NO_AREA */
static uint32_t find_area(const normal_t *mode)
{
    for (uint32_t a = 0; a < mode->layout.nsends; a++)
        if (a != mode->handed && is_released(mode, a)) return a;
    return NORMAL_NO_AREA;
}

/* ---- sums of rows ---- */

/* What a mistake changes shows in it: odd factors lose no bit of any word. */
static uint64_t sum_row(const char *row, size_t bytes)
{
    uint64_t sum = bytes, word = 0;
    for (size_t i = 0; i < bytes; i += sizeof word) {
        memcpy(&word, row + i, bytes - i < sizeof word ? bytes - i : sizeof word);
        sum = (sum ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        sum ^= sum >> 29;
    }
    return sum;
}

/* A row that no rank reads may be anything. */
static uint64_t sum_token(const normal_t *mode, const normal_send_t *send, uint64_t token)
{
    const char *row = begin_of(mode, (uint32_t)(send - mode->sends)) + (send->first + token) * mode->layout.send_stride;
    return sum_row(row, send->bytes);
}

void normal_note_rows(normal_t *mode, const xep_op_t *op)
{
    const normal_state_t *state = normal_state(op);
    const normal_routing_t *routing = normal_slot(mode, op->slot)->routing;
    if (state->x_offset == 0 || mode->sends[state->area].tokens != 0) return; /* once: the step may be taken again */
    normal_send_t *send = &mode->sends[state->area];
    send->tokens = routing->tokens;
    send->bytes = xep_dispatch_row_bytes(op->dispatch);
    for (uint64_t t = 0; t < send->tokens; t++)
        send->sums[t] = routing->first[t] < routing->first[t + 1] ? sum_token(mode, send, t) : 0;
}

/* Once: then the memory is anybody's, as it would be otherwise. */
static xep_status_t check_unchanged(normal_t *mode, xep_op_t *op, uint32_t area)
{
    normal_send_t *send = &mode->sends[area];
    uint64_t tokens = send->tokens;
    send->tokens = 0;
    for (uint64_t t = 0; t < tokens; t++)
        if (send->sums[t] != 0 && send->sums[t] != sum_token(mode, send, t))
            return mode->kit.env->fail(mode->kit.env, op, XEP_ERR_INVALID,
                                       "row %llu of dispatch %llu was changed while ranks could read it in place",
                                       (unsigned long long)t, (unsigned long long)send->epoch);
    return XEP_OK;
}

/* ---- where rows are ---- */

/* The user's rows, in the memory that was handed out: from which row on. */
static xep_status_t check_rows(const normal_t *mode, xep_op_t *op, uint64_t *first_p)
{
    const xep_dispatch_args_t *args = op->dispatch;
    const normal_layout_t *at = &mode->layout;
    uint64_t offset =
        mode->handed == NORMAL_NO_AREA ? 0 : (uint64_t)((const char *)args->x - begin_of(mode, mode->handed));
    *first_p = offset / at->send_stride;
    if (mode->handed == NORMAL_NO_AREA || offset >= at->send_bytes || offset % at->send_stride != 0 ||
        *first_p + args->tokens > mode->kit.shape->tokens)
        return mode->kit.env
            ->fail(mode->kit.env, op, XEP_ERR_INVALID,
                   "invalid x: %p, %llu rows (rows of the memory that xep_buffer_send_memory() returned "
                   "since the last dispatch from there, or memory that is not the buffer's)",
                   args->x, (unsigned long long)args->tokens);
    if (args->tokens > 1 && args->x_stride != at->send_stride)
        return mode->kit.env->fail(mode->kit.env, op, XEP_ERR_INVALID,
                                   "invalid x_stride: %zu (%llu, as xep_buffer_send_memory() returned)", args->x_stride,
                                   (unsigned long long)at->send_stride);
    return XEP_OK;
}

/* Whether any of the rows lies in any area. */
static int is_in_sends(const normal_t *mode, const xep_dispatch_args_t *args)
{
    uintptr_t begin = (uintptr_t)args->x, end = begin + (args->tokens - 1) * args->x_stride + 1;
    uintptr_t sends = (uintptr_t)begin_of(mode, 0);
    return begin < sends + mode->layout.nsends * mode->layout.send_bytes && end > sends;
}

xep_status_t normal_choose_place(normal_t *mode, xep_op_t *op)
{
    const xep_dispatch_args_t *args = op->dispatch;
    normal_state_t *state = normal_state(op);
    uint64_t first = 0;
    normal_slot(mode, op->slot)->in_place = 0;
    if ((args->flags & XEP_DISPATCH_IN_PLACE) == 0 || args->tokens == 0) return XEP_OK;
    int handed = is_in_sends(mode, args);
    xep_status_t status = handed ? check_rows(mode, op, &first) : XEP_OK;
    if (status != XEP_OK) return status;
    state->area = handed ? mode->handed : find_area(mode);
    if (state->area == NORMAL_NO_AREA) return XEP_OK;
    if (!handed) status = check_unchanged(mode, op, state->area);
    if (status != XEP_OK) return status;
    state->send = handed ? NULL : begin_of(mode, state->area);
    state->x_offset = mode->layout.sends + state->area * mode->layout.send_bytes + first * mode->layout.send_stride;
    return XEP_OK;
}

void normal_take_place(normal_t *mode, const xep_op_t *op)
{
    const normal_state_t *state = normal_state(op);
    if (state->x_offset == 0) return;
    normal_send_t *send = &mode->sends[state->area];
    uint64_t inside = (state->x_offset - mode->layout.sends) % mode->layout.send_bytes;
    *send = (normal_send_t){.epoch = op->epoch,
                            .before = send->epoch,
                            .first = inside / mode->layout.send_stride,
                            .sums = send->sums};
    if (state->area == mode->handed) mode->handed = NORMAL_NO_AREA;
}

/* What the user wrote there stays there, so that the same call with room succeeds. */
void normal_return_place(normal_t *mode, const xep_op_t *op)
{
    const normal_state_t *state = normal_state(op);
    if (state->x_offset == 0) return;
    mode->sends[state->area].epoch = mode->sends[state->area].before;
    if (state->send == NULL && mode->handed == NORMAL_NO_AREA) mode->handed = state->area;
}

/* ---- where they are read ---- */

static xep_status_t point_rows_of(normal_t *mode, xep_op_t *op, uint32_t rank)
{
    normal_slot_t *slot = normal_slot(mode, op->slot);
    const normal_record_t *record = &slot->from[rank];
    const char *base = mode->kit.base[rank] + record->x_offset;
    const int32_t *tokens = op->recv->src_token;
    for (uint64_t i = slot->routing->src_begin[rank]; i < slot->routing->src_begin[rank + 1]; i++) {
        if ((uint64_t)(int64_t)tokens[i] >= record->tokens)
            return mode->kit.env->fail(mode->kit.env, op, XEP_ERR_PROTOCOL, "rank %u sent token %d (of %llu)", rank,
                                       tokens[i], (unsigned long long)record->tokens);
        slot->row[i] = base + (uint32_t)tokens[i] * mode->layout.send_stride;
    }
    return XEP_OK;
}

xep_status_t normal_point_rows(normal_t *mode, xep_op_t *op)
{
    normal_slot_t *slot = normal_slot(mode, op->slot);
    const char *x = xep_kit_own_area(&mode->kit, mode->layout.common.x, op->slot);
    size_t stride = xep_row_stride(xep_dispatch_row_bytes(op->dispatch));
    xep_status_t status = XEP_OK;
    for (uint32_t r = 0; r < mode->kit.shape->nranks && status == XEP_OK; r++) {
        if (mode->kit.base[r] != NULL && slot->from[r].x_offset != 0) {
            status = point_rows_of(mode, op, r);
            continue;
        }
        for (uint64_t i = slot->routing->src_begin[r]; i < slot->routing->src_begin[r + 1]; i++)
            slot->row[i] = x + i * stride;
    }
    memset(slot->row + op->recv->rows, 0, (op->recv->capacity - op->recv->rows) * sizeof *slot->row);
    slot->in_place = status == XEP_OK;
    return status;
}

/* ---- what the core calls ---- */

static xep_status_t find_memory(void *opaque, void **base_p, size_t *stride_p)
{
    normal_t *mode = opaque;
    if (mode->handed == NORMAL_NO_AREA) {
        uint32_t area = find_area(mode);
        if (area == NORMAL_NO_AREA) return XEP_INPROGRESS;
        xep_status_t status = check_unchanged(mode, NULL, area);
        if (status != XEP_OK) return status;
        mode->handed = area;
    }
    *base_p = begin_of(mode, mode->handed);
    *stride_p = mode->layout.send_stride;
    return XEP_OK;
}

/* Behind all that the user has read: the word is stored with release. */
static void release(void *opaque, uint32_t number)
{
    normal_t *mode = opaque;
    const normal_layout_t *at = &mode->layout;
    normal_slot_t *slot = normal_slot(mode, number);
    if (!slot->in_place) return;
    slot->in_place = 0;
    for (uint32_t r = 0; r < mode->kit.shape->nranks; r++) {
        if (mode->kit.base[r] == NULL || slot->from[r].x_offset == 0) continue;
        uint64_t area = (slot->from[r].x_offset - at->sends) / at->send_bytes;
        xep_kit_signal(&mode->kit, r, released_offset(mode, area, mode->kit.shape->rank), slot->from[r].epoch);
    }
}

const xep_place_ops_t normal_place = {.memory = find_memory, .release = release};
