/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * A mode outside the tree, made with the kit: "flood" sends every token to every rank, which looks for those that
 * select its experts. Simple, and not bad where a token has as many experts as there are ranks. Where to read first
 * when writing a mode: what is here is its plan, its layout and its movement of rows, the rest is the kit's. Rows of
 * any type; combines fp32.
 *
 *     cc -shared -fPIC xep_flood.c $(pkg-config --cflags --libs xep-kit) -o xep_flood.so
 *     XEP_PLUGIN_PATH=$PWD XEP_MODE=flood ./program
 *
 * dispatch: to each rank the indices and rows of all tokens, into its delivery of this turn and rank, then a notice.
 * combine: each rank puts what it has for d's tokens into d's slot, area "returned", then does the kit's handshake.
 */
#include <string.h>

#include <xep/kit/handshake.h>
#include <xep/kit/notices.h>
#include <xep/kit/rows.h>

/** Written by a source, read by the heap's owner. */
typedef struct notice {
    _Atomic uint64_t word; /* epoch and rows: the delivery is there */
    uint32_t hidden, topk, dtype, slot, tokens;
    uint32_t reserved[9];
} notice_t;
_Static_assert(sizeof(notice_t) == XEP_NOTICE_BYTES, "a cache line");

typedef struct layout {
    xep_heap_layout_t common; /* first */
    xep_area_t chosen, rows;  /* deliveries [2 * slots][R]: of int64_t [T][K]; of rows [T] */
    xep_area_t returned;      /* [slots][R][T] rows */
    size_t stride;            /* between rows of a delivery, and of x */
} layout_t;

typedef struct slot {
    uint64_t *begin, *expert_rows; /* [R + 1] first row of a source; [L] */
    int64_t *experts;              /* [T][K] */
    uint32_t *rank_rows;           /* [R][R] */
    notice_t notice, *from;        /* to all; [R] as received */
} slot_t;

typedef struct flood {
    xep_kit_t kit; /* first */
    layout_t layout;
} flood_t;

static slot_t *slot_of(const flood_t *mode, const xep_op_t *op)
{
    return (slot_t *)mode->kit.slots + op->slot;
}

/* ---- layout ---- */

static void lay_slot(const xep_shape_t *shape, xep_heap_layout_t *common, xep_carve_t slot[XEP_REGIONS])
{
    layout_t *at = (layout_t *)common;
    xep_carve_received(shape, common, shape->topk, 0, slot);
    common->input = xep_carve_area(&slot[XEP_REGION_ROWS], common->recv_rows, common->combine_stride);
    at->returned = xep_carve_area(&slot[XEP_REGION_ROWS], common->recv_rows, common->combine_stride);
}

static xep_status_t lay_heap(const xep_shape_t *shape, xep_heap_layout_t *common, xep_carve_t region[XEP_REGIONS])
{
    layout_t *at = (layout_t *)common;
    xep_carve_t *metadata = &region[XEP_REGION_METADATA], *rows = &region[XEP_REGION_ROWS];
    uint64_t deliveries = xep_notices_ring(shape) * shape->nranks;
    common->recv_rows = shape->nranks * shape->tokens;
    common->notices = xep_notices_lay(shape, &region[XEP_REGION_CONTROL]);
    at->stride = xep_row_stride((size_t)shape->hidden * shape->elem_bytes);
    metadata->stride = shape->tokens * shape->topk * sizeof(int64_t);
    at->chosen = xep_carve_area(metadata, deliveries, metadata->stride);
    rows->stride = shape->tokens * at->stride;
    at->rows = xep_carve_area(rows, deliveries, rows->stride);
    xep_carve_slots(shape, common, region, lay_slot);
    return XEP_OK;
}

/* ---- dispatch ---- */

/* What every rank gets: rows, indices, the notice. */
static int delivery_transfer(const void *opaque, const xep_op_t *op, uint32_t rank, uint32_t number,
                             xep_transfer_t *transfer)
{
    const flood_t *mode = opaque;
    const slot_t *slot = slot_of(mode, op);
    const xep_dispatch_args_t *args = op->dispatch;
    const uint64_t delivery = xep_notices_entry_of(&mode->kit, op->turn, mode->kit.shape->rank);
    (void)rank;
    if (number == 0)
        *transfer = (xep_transfer_t){.src = args->x,
                                     .src_stride = args->x_stride,
                                     .rows = slot->notice.tokens,
                                     .bytes = xep_dispatch_row_bytes(args),
                                     .offset = xep_area_at(mode->layout.rows, delivery),
                                     .stride = mode->layout.stride};
    else if (number == 1)
        *transfer = (xep_transfer_t){.src = (const char *)slot->experts,
                                     .rows = 1,
                                     .bytes = slot->notice.tokens * args->topk * sizeof(int64_t),
                                     .offset = xep_area_at(mode->layout.chosen, delivery)};
    else xep_notices_transfer(&mode->kit, op, &slot->notice, slot->notice.tokens, transfer);
    return number <= 2;
}

/* Copies the notices, so that what is checked is what is used. */
static xep_status_t take_notices(flood_t *mode, xep_op_t *op, slot_t *slot)
{
    static const xep_agree_param_t params[] = {XEP_AGREE_PARAM("hidden", XEP_AGREE_NUMBER, notice_t, hidden),
                                               XEP_AGREE_PARAM("topk", XEP_AGREE_NUMBER, notice_t, topk),
                                               XEP_AGREE_PARAM("dtype", XEP_AGREE_DTYPE, notice_t, dtype)};
    const xep_env_t *env = mode->kit.env;
    const uint32_t nranks = env->shape->nranks;
    for (uint32_t r = 0; r < nranks; r++) {
        xep_notices_take(&mode->kit, op, r, &slot->notice, &slot->from[r]);
        if (slot->from[r].tokens > env->shape->tokens || slot->from[r].slot >= env->shape->slots)
            return env->fail(env, op, XEP_ERR_PROTOCOL,
                             "invalid notice from rank %u: %u tokens, slot %u (at most %llu, below %u)", r,
                             slot->from[r].tokens, slot->from[r].slot, (unsigned long long)env->shape->tokens,
                             env->shape->slots);
        *xep_combine_slot_there(&mode->kit, op->slot, r) = slot->from[r].slot;
        slot->begin[r + 1] = slot->begin[r] + slot->from[r].tokens;
        for (uint32_t d = 0; d < nranks; d++) slot->rank_rows[r * nranks + d] = slot->from[r].tokens;
    }
    xep_kit_state(op)->verdict = xep_agree(env, op, params, 3, slot->from, sizeof *slot->from);
    return XEP_OK;
}

/* Out of a delivery, which will be written again before the handle is released. */
static void copy_rows(flood_t *mode, const xep_op_t *op, uint32_t source, slot_t *slot)
{
    const xep_recv_t *recv = op->recv;
    const uint64_t delivery = xep_notices_entry_of(&mode->kit, op->turn, source), begin = slot->begin[source];
    const int64_t *experts = (int64_t *)(void *)xep_kit_own_area(&mode->kit, mode->layout.chosen, delivery);
    int64_t *idx = (int64_t *)recv->topk_idx + begin * recv->topk;
    memcpy((char *)recv->x + begin * recv->x_stride, xep_kit_own_area(&mode->kit, mode->layout.rows, delivery),
           slot->from[source].tokens * recv->x_stride);
    for (uint32_t t = 0; t < slot->from[source].tokens; t++) {
        recv->src_token[begin + t] = (int32_t)t;
        for (uint32_t k = 0; k < recv->topk; k++, idx++) {
            uint64_t local = (uint64_t)*experts++ - recv->first_expert;
            *idx = local < recv->local_experts ? (int64_t)local : -1;
            if (*idx >= 0) slot->expert_rows[local]++;
        }
    }
}

static xep_status_t receive(void *opaque, xep_op_t *op)
{
    flood_t *mode = opaque;
    const xep_shape_t *shape = mode->kit.shape;
    slot_t *slot = slot_of(mode, op);
    xep_status_t status = take_notices(mode, op, slot);
    if (status != XEP_OK || xep_kit_state(op)->verdict != XEP_OK) return status;
    xep_kit_fill_recv(&mode->kit, op, slot->begin[shape->nranks]);
    op->recv->arrangement = XEP_ROWS_BY_RANK;
    op->recv->x_stride = mode->layout.stride;
    op->recv->topk_weights = NULL;
    op->recv->src_begin = slot->begin;
    op->recv->rank_rows = slot->rank_rows;
    op->recv->expert_rows = slot->expert_rows;
    memset(slot->expert_rows, 0, shape->local_experts * sizeof *slot->expert_rows);
    for (uint32_t r = 0; r < shape->nranks; r++) copy_rows(mode, op, r, slot);
    xep_kit_tell_rows(op, op->recv->rows);
    return XEP_OK;
}

/* Refuses what it cannot do before anything is sent: after an error the operation never was. */
static xep_status_t flood_dispatch(void *opaque, xep_op_t *op)
{
    flood_t *mode = opaque;
    const xep_env_t *env = mode->kit.env;
    const xep_dispatch_args_t *a = op->dispatch;
    slot_t *slot = slot_of(mode, op);
    if (op->cached_slot != XEP_NO_SLOT || a->scales != NULL || a->capacity != 0 || a->expert_alignment > 1 ||
        a->topk_weights != NULL || a->topk_idx_dtype != XEP_INT64 || a->quant != XEP_QUANT_NONE || a->flags != 0 ||
        a->expert_stats != NULL || a->arrangement > XEP_ROWS_BY_RANK)
        return env->fail(env, op, XEP_ERR_UNSUPPORTED, "flood sends rows and 64-bit topk_idx, nothing else");
    for (uint64_t t = 0; t < a->tokens; t++) {
        int64_t *experts = slot->experts + t * a->topk;
        memcpy(experts, (const char *)a->topk_idx + t * a->topk_idx_stride, a->topk * sizeof *experts);
        for (uint32_t k = 0; k < a->topk; k++)
            if (experts[k] < -1 || experts[k] >= (int64_t)env->shape->experts)
                return xep_kit_refuse_expert(&mode->kit, op, t, k);
    }
    slot->notice = (notice_t){.hidden = a->hidden, .topk = a->topk, .dtype = a->dtype, .slot = op->slot};
    slot->notice.tokens = (uint32_t)a->tokens;
    return xep_steps_begin(mode, op);
}

/* ---- combine ---- */

/* The rows of a reader, then the offer. */
static int returned_transfer(const void *opaque, const xep_op_t *op, uint32_t rank, uint32_t number,
                             xep_transfer_t *transfer)
{
    const flood_t *mode = opaque;
    const xep_shape_t *shape = mode->kit.shape;
    const slot_t *slot = slot_of(mode, op);
    size_t stride;
    const char *x = xep_combine_outputs(&mode->kit, op, &stride);
    if (number == 0)
        *transfer = (xep_transfer_t){.src = x + slot->begin[rank] * stride,
                                     .src_stride = stride,
                                     .rows = slot->from[rank].tokens,
                                     .bytes = xep_combine_row_bytes(op->combine),
                                     .stride = mode->layout.common.combine_stride,
                                     .offset = xep_area_at(mode->layout.returned, slot->from[rank].slot) +
                                               shape->rank * shape->tokens * mode->layout.common.combine_stride};
    else xep_combine_offer_transfer(&mode->kit, op, transfer);
    return number <= 1;
}

/* The ranks of a token in ascending order, each once, whichever of its experts are there. */
static xep_status_t sum(void *opaque, xep_op_t *op)
{
    flood_t *mode = opaque;
    const xep_combine_args_t *args = op->combine;
    const slot_t *slot = slot_of(mode, op);
    const char *row = xep_kit_own_area(&mode->kit, mode->layout.returned, op->slot);
    for (uint32_t t = 0; t < slot->notice.tokens; t++)
        memset((char *)args->out + t * args->out_stride, 0, args->hidden * sizeof(float));
    for (uint32_t r = 0; r < mode->kit.shape->nranks; r++) {
        for (uint32_t t = 0; t < mode->kit.shape->tokens; t++, row += mode->layout.common.combine_stride) {
            float *out = (float *)(void *)((char *)args->out + t * args->out_stride);
            const int64_t *experts = slot->experts + t * slot->notice.topk;
            uint32_t topk = slot->notice.topk, k = t < slot->notice.tokens ? 0 : topk;
            while (k < topk && (experts[k] < 0 || mode->kit.owner[experts[k]] != r)) k++;
            for (uint32_t h = 0; k < topk && h < args->hidden; h++) out[h] += ((const float *)(const void *)row)[h];
        }
    }
    return XEP_OK;
}

static xep_status_t flood_combine(void *mode, xep_op_t *op)
{
    const xep_env_t *env = ((flood_t *)mode)->kit.env;
    const xep_combine_args_t *a = op->combine;
    if (a->dtype != XEP_FP32 || a->topk_weights != NULL || a->weights != NULL || a->flags != 0 || a->bias[0] != NULL ||
        a->bias[1] != NULL)
        return env->fail(env, op, XEP_ERR_UNSUPPORTED, "flood combines fp32, without weights and biases");
    return xep_combine_begin(mode, op, XEP_AGREE_ANY);
}

/* ---- open and close ---- */

static const xep_step_t dispatch_steps[] = {
    {.name = "room to send rows", .run = xep_step_send, .transfers = delivery_transfer},
    {.name = "notices", .run = xep_step_wait, .word = xep_notices_word},
    {.name = "copies", .run = receive},
    {XEP_STEP_FLUSH},
    {0},
};

static const xep_step_t combine_steps[] = {
    {XEP_COMBINE_STEP_DRAIN},
    {.name = "room to give rows back", .run = xep_step_send, .transfers = returned_transfer},
    {.name = "offers", .run = xep_step_wait, .word = xep_combine_ready_word},
    {XEP_COMBINE_STEP_AGREE},
    {.name = "sums", .run = sum, .agreed = 1},
    {XEP_COMBINE_STEP_TELL_READ},
    {XEP_STEP_FLUSH},
    {0},
};

static void lay_arrays(void *opaque, xep_carve_t *arena)
{
    const flood_t *mode = opaque;
    const xep_shape_t *shape = mode->kit.shape;
    const uint64_t ranks = shape->nranks;
    for (slot_t *slot = mode->kit.slots; slot < (slot_t *)mode->kit.slots + shape->slots; slot++) {
        slot->begin = xep_carve_array(arena, ranks + 1, sizeof *slot->begin);
        slot->expert_rows = xep_carve_array(arena, shape->local_experts, sizeof *slot->expert_rows);
        slot->experts = xep_carve_array(arena, shape->tokens * shape->topk, sizeof *slot->experts);
        slot->rank_rows = xep_carve_array(arena, ranks * ranks, sizeof *slot->rank_rows);
        slot->from = xep_carve_array(arena, ranks, sizeof *slot->from);
    }
}

const xep_kit_mode_t xep_kit_mode = {
    .mode_bytes = sizeof(flood_t),
    .layout = offsetof(flood_t, layout),
    .slot_bytes = sizeof(slot_t),
    .dispatch_steps = dispatch_steps,
    .combine_steps = combine_steps,
    .lay_heap = lay_heap,
    .lay_arrays = lay_arrays,
};

__attribute__((visibility("default"))) const xep_plugin_t xep_plugin = {
    XEP_PLUGIN_SIZES,
    XEP_KIT_OPS,
    .state_bytes = sizeof(xep_kit_state_t),
    .name = "flood",
    .brief = "an example: every token to every rank",
    .arrangements = 1u << XEP_ROWS_BY_RANK,
    .open = xep_kit_open,
    .close = xep_kit_close,
    .dispatch = flood_dispatch,
    .combine = flood_combine,
};
