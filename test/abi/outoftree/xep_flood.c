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

#include <xep/kit/arena.h>
#include <xep/kit/handshake.h>
#include <xep/kit/notices.h>
#include <xep/kit/rows.h>

/** Written by a source, read by the heap's owner. */
typedef struct notice {
    _Atomic uint64_t epoch; /* the delivery is there */
    uint32_t hidden, topk, dtype, slot, tokens;
    uint32_t reserved[9];
} notice_t;
_Static_assert(sizeof(notice_t) == XEP_NOTICE_BYTES, "a cache line");

typedef struct layout {
    uint64_t notices, mail;         /* control: [2 * slots][R] each */
    xep_area_t chosen, tokens, idx; /* metadata: [2 * slots][R] deliveries of int64_t [T][K]; [slots][R * T], and [K] */
    xep_area_t rows;                /* rows: [2 * slots][R] deliveries of [T] */
    xep_area_t x, input, returned;  /* [slots][R * T] */
    size_t stride, combine_stride;  /* between rows of x, of the last two */
} layout_t;

typedef struct slot {
    uint64_t *begin, *expert_rows; /* [R + 1] first row of a source; [L] */
    int64_t *experts;              /* [T][K] */
    uint32_t *rank_rows;           /* [R][R] */
    notice_t notice, *from;        /* to all; [R] as received */
} slot_t;

typedef struct flood {
    xep_kit_t kit; /* first */
    layout_t at;
} flood_t;

static slot_t *slot_of(const flood_t *mode, const xep_op_t *op)
{
    return (slot_t *)mode->kit.slots + op->slot;
}

/* ---- layout ---- */

static void lay_slot(const xep_shape_t *shape, void *layout, xep_carve_t slot[XEP_REGIONS])
{
    layout_t *at = layout;
    uint64_t most = shape->nranks * shape->tokens;
    at->tokens = xep_carve_area(&slot[XEP_REGION_METADATA], most, sizeof(int32_t));
    at->idx = xep_carve_area(&slot[XEP_REGION_METADATA], most, shape->topk * sizeof(int64_t));
    at->x = xep_carve_area(&slot[XEP_REGION_ROWS], most, at->stride);
    at->input = xep_carve_area(&slot[XEP_REGION_ROWS], most, at->combine_stride);
    at->returned = xep_carve_area(&slot[XEP_REGION_ROWS], most, at->combine_stride);
}

static xep_status_t make_layout(const xep_shape_t *shape, xep_region_t *regions, layout_t *at)
{
    xep_carve_t carve[XEP_REGIONS], *metadata = &carve[XEP_REGION_METADATA], *rows = &carve[XEP_REGION_ROWS];
    uint64_t deliveries = xep_notices_ring(shape) * shape->nranks;
    xep_carve_begin(carve, regions);
    at->stride = xep_row_stride((size_t)shape->hidden * shape->elem_bytes);
    at->combine_stride = xep_row_stride((size_t)shape->hidden * shape->combine_elem_bytes);
    at->notices = xep_notices_lay(shape, &carve[XEP_REGION_CONTROL]);
    at->mail = xep_combine_lay_mail(shape, &carve[XEP_REGION_CONTROL]);
    metadata->stride = shape->tokens * shape->topk * sizeof(int64_t);
    at->chosen = xep_carve_area(metadata, deliveries, metadata->stride);
    rows->stride = shape->tokens * at->stride;
    at->rows = xep_carve_area(rows, deliveries, rows->stride);
    xep_carve_slots(shape, at, carve, lay_slot);
    return xep_carve_end(carve, regions);
}

static xep_status_t flood_heap_size(const xep_shape_t *shape, xep_region_t *regions, uint64_t *recv_rows_p)
{
    layout_t at;
    *recv_rows_p = shape->nranks * shape->tokens;
    if (shape->tokens > INT32_MAX / shape->topk) return XEP_ERR_INVALID;
    return make_layout(shape, regions, &at);
}

/* ---- dispatch ---- */

/* What every rank gets: rows, indices, the notice. */
static int delivery_part(const void *opaque, const xep_op_t *op, uint32_t rank, uint32_t number, xep_part_t *part)
{
    const flood_t *mode = opaque;
    const slot_t *slot = slot_of(mode, op);
    const xep_dispatch_args_t *args = op->dispatch;
    const uint64_t delivery = xep_notices_entry_of(&mode->kit, op->turn, mode->kit.shape->rank);
    (void)rank;
    if (number == 0)
        *part = (xep_part_t){.src = args->x,
                             .src_stride = args->x_stride,
                             .rows = slot->notice.tokens,
                             .bytes = args->hidden * xep_elem_bytes(args->dtype),
                             .offset = xep_area_at(mode->at.rows, delivery),
                             .stride = mode->at.stride};
    else if (number == 1)
        *part = (xep_part_t){.src = (const char *)slot->experts,
                             .rows = 1,
                             .bytes = slot->notice.tokens * args->topk * sizeof(int64_t),
                             .offset = xep_area_at(mode->at.chosen, delivery)};
    else xep_notices_part(&mode->kit, op, &slot->notice, part);
    return number <= 2;
}

static xep_status_t send(void *mode, xep_op_t *op)
{
    return xep_send_all(mode, op, delivery_part);
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
            return env->fail(env, op, XEP_ERR_PROTOCOL, "rank %u sent a notice of %u tokens in slot %u", r,
                             slot->from[r].tokens, slot->from[r].slot);
        *xep_combine_slot_there(&mode->kit, op->slot, r) = slot->from[r].slot;
        slot->begin[r + 1] = slot->begin[r] + slot->from[r].tokens;
        for (uint32_t d = 0; d < nranks; d++) slot->rank_rows[r * nranks + d] = slot->from[r].tokens;
    }
    xep_kit_state(op)->verdict = xep_agree(env, op, params, 3, slot->from, sizeof *slot->from);
    return XEP_OK;
}

static int is_expert_of(const flood_t *mode, int64_t expert, uint32_t rank)
{
    return expert >= mode->kit.first_expert[rank] && expert < mode->kit.first_expert[rank + 1];
}

/* Out of a delivery, which will be written again before the handle is released. */
static void copy_rows(flood_t *mode, const xep_op_t *op, uint32_t source, slot_t *slot)
{
    const xep_recv_t *recv = op->recv;
    const uint64_t delivery = xep_notices_entry_of(&mode->kit, op->turn, source), begin = slot->begin[source];
    const int64_t *experts = (int64_t *)(void *)xep_kit_own_area(&mode->kit, mode->at.chosen, delivery);
    int64_t *idx = (int64_t *)recv->topk_idx + begin * recv->topk;
    memcpy((char *)recv->x + begin * recv->x_stride, xep_kit_own_area(&mode->kit, mode->at.rows, delivery),
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
    xep_recv_t recv = xep_kit_recv(&mode->kit, op, slot->begin[shape->nranks]);
    recv.arrangement = XEP_ROWS_BY_RANK;
    recv.x = xep_kit_own_area(&mode->kit, mode->at.x, op->slot);
    recv.x_stride = mode->at.stride;
    recv.topk_idx = xep_kit_own_area(&mode->kit, mode->at.idx, op->slot);
    recv.src_token = (int32_t *)(void *)xep_kit_own_area(&mode->kit, mode->at.tokens, op->slot);
    recv.src_begin = slot->begin;
    recv.rank_rows = slot->rank_rows;
    recv.expert_rows = slot->expert_rows;
    *op->recv = recv;
    memset(slot->expert_rows, 0, shape->local_experts * sizeof *slot->expert_rows);
    for (uint32_t r = 0; r < shape->nranks; r++) copy_rows(mode, op, r, slot);
    if (op->dispatch->recv_rows_p != NULL) *op->dispatch->recv_rows_p = op->recv->rows;
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
                return env->fail(env, op, XEP_ERR_INVALID, "topk_idx[%llu][%u] is %lld (-1 to %u)",
                                 (unsigned long long)t, k, (long long)experts[k], env->shape->experts - 1);
    }
    slot->notice = (notice_t){.hidden = a->hidden,
                              .topk = a->topk,
                              .dtype = a->dtype,
                              .slot = op->slot,
                              .tokens = (uint32_t)a->tokens};
    return xep_steps_begin(mode, op);
}

/* ---- combine ---- */

/* The rows of a reader, then the offer. */
static int returned_part(const void *opaque, const xep_op_t *op, uint32_t rank, uint32_t number, xep_part_t *part)
{
    const flood_t *mode = opaque;
    const xep_shape_t *shape = mode->kit.shape;
    const slot_t *slot = slot_of(mode, op);
    const char *x = op->combine->x != NULL ? op->combine->x : xep_kit_own_area(&mode->kit, mode->at.input, op->slot);
    size_t stride = op->combine->x != NULL ? op->combine->x_stride : mode->at.combine_stride;
    if (number == 0)
        *part = (xep_part_t){.src = x + slot->begin[rank] * stride,
                             .src_stride = stride,
                             .rows = slot->from[rank].tokens,
                             .bytes = op->combine->hidden * sizeof(float),
                             .stride = mode->at.combine_stride,
                             .offset = xep_area_at(mode->at.returned, slot->from[rank].slot) +
                                       shape->rank * shape->tokens * mode->at.combine_stride};
    else xep_combine_offer_part(&mode->kit, op, part);
    return number <= 1;
}

static xep_status_t give_back(void *mode, xep_op_t *op)
{
    xep_combine_make_offer(op, XEP_AGREE_ANY);
    return xep_send_all(mode, op, returned_part);
}

/* The ranks of a token in ascending order, each once, whichever of its experts are there. */
static xep_status_t sum(void *opaque, xep_op_t *op)
{
    flood_t *mode = opaque;
    const xep_combine_args_t *args = op->combine;
    const slot_t *slot = slot_of(mode, op);
    const char *row = xep_kit_own_area(&mode->kit, mode->at.returned, op->slot);
    for (uint32_t t = 0; t < slot->notice.tokens; t++)
        memset((char *)args->out + t * args->out_stride, 0, args->hidden * sizeof(float));
    for (uint32_t r = 0; r < mode->kit.shape->nranks; r++) {
        for (uint32_t t = 0; t < mode->kit.shape->tokens; t++, row += mode->at.combine_stride) {
            float *out = (float *)(void *)((char *)args->out + t * args->out_stride);
            uint32_t topk = slot->notice.topk, k = t < slot->notice.tokens ? 0 : topk;
            while (k < topk && !is_expert_of(mode, slot->experts[t * topk + k], r)) k++;
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
    return xep_steps_begin(mode, op);
}

/* ---- open and close ---- */

static const xep_step_t dispatch_steps[] = {
    {.name = "room to send rows", .run = send},
    {.name = "notices", .run = xep_step_wait, .word = xep_notices_word},
    {.name = "copies", .run = receive},
    {.name = "the wire", .run = xep_step_flush},
    {0},
};

static const xep_step_t combine_steps[] = {
    {.name = "readers of the last combine", .run = xep_combine_drain, .word = xep_combine_read_word},
    {.name = "room to give rows back", .run = give_back},
    {.name = "offers", .run = xep_step_wait, .word = xep_combine_ready_word},
    {.name = "agreement", .run = xep_combine_take_offers},
    {.name = "sums", .run = sum},
    {.name = "room to say that rows were read", .run = xep_combine_tell_read},
    {.name = "the wire", .run = xep_step_flush},
    {0},
};

static void carve_all(void *opaque, xep_carve_t *arena)
{
    const flood_t *mode = opaque;
    const xep_shape_t *shape = mode->kit.shape;
    const uint64_t ranks = shape->nranks;
    slot_t *slots = mode->kit.slots;
    for (slot_t *slot = slots; slot < slots + shape->slots; slot++) {
        slot->begin = xep_carve_array(arena, ranks + 1, sizeof *slot->begin);
        slot->expert_rows = xep_carve_array(arena, shape->local_experts, sizeof *slot->expert_rows);
        slot->experts = xep_carve_array(arena, shape->tokens * shape->topk, sizeof *slot->experts);
        slot->rank_rows = xep_carve_array(arena, ranks * ranks, sizeof *slot->rank_rows);
        slot->from = xep_carve_array(arena, ranks, sizeof *slot->from);
    }
}

static xep_status_t flood_open(const xep_env_t *env, void **mode_p)
{
    void *opaque;
    xep_status_t status = xep_kit_open(env, sizeof(flood_t), sizeof(slot_t), &opaque);
    if (status != XEP_OK) return status;
    flood_t *mode = opaque;
    make_layout(env->shape, mode->kit.regions, &mode->at);
    mode->kit.dispatch_steps = dispatch_steps, mode->kit.combine_steps = combine_steps;
    mode->kit.notices = mode->at.notices, mode->kit.mail = mode->at.mail;
    mode->kit.input = mode->at.input, mode->kit.input_stride = mode->at.combine_stride;
    status = xep_arena_open(&mode->kit, carve_all, 0);
    if (status == XEP_OK) *mode_p = mode;
    else xep_kit_close(mode);
    return status;
}

__attribute__((visibility("default"))) const xep_plugin_t xep_plugin = {
    XEP_PLUGIN_SIZES,
    .state_bytes = sizeof(xep_kit_state_t),
    .name = "flood",
    .brief = "an example: every token to every rank",
    .heap_size = flood_heap_size,
    .open = flood_open,
    .close = xep_kit_close,
    .dispatch = flood_dispatch,
    .combine = flood_combine,
    .progress = xep_steps_progress,
    .input = xep_steps_input,
    .explain = xep_steps_explain,
};
