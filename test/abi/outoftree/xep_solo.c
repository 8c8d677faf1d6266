/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * A mode outside the tree: "solo" serves a group of one rank, rows of any type, and combines fp32.
 * The smallest whole mode there is: where to read first when writing one. What it leaves out is
 * peers: plugins/normal shows how counts, rows and signals travel through env->wire.
 *
 *     cc -shared -fPIC xep_solo.c $(pkg-config --cflags xep) -o xep_solo.so
 *     XEP_PLUGIN_PATH=$PWD XEP_MODE=solo ./program
 */
#include <stdlib.h>
#include <string.h>

#include <xep/plugin.h>

/* What a dispatch leaves for its combine: memory of the mode, not of the heap, as no peer reads it. */
typedef struct slot {
    int32_t *src_token; /* [tokens] of each row */
    void *topk_idx;     /* [tokens][topk] */
    float *topk_weights;
    uint64_t src_begin[2];
    uint32_t rank_rows[1];
    uint64_t *expert_rows; /* [experts] */
    uint64_t tokens;       /* of the dispatch */
} slot_t;

typedef struct solo {
    const xep_env_t *env;
    uint64_t row_bytes, input_row_bytes; /* between rows in the heap: whole cache lines */
    slot_t slots[];
} solo_t;

static uint64_t lines(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static uint64_t row_bytes(const xep_shape_t *shape)
{
    return lines((uint64_t)shape->hidden * shape->elem_bytes);
}

static uint64_t input_row_bytes(const xep_shape_t *shape)
{
    return lines((uint64_t)shape->hidden * shape->combine_elem_bytes);
}

/* The heap: for each slot received rows, then combine input. Row r of a slot is always row r of it. */
static xep_status_t solo_heap_size(const xep_shape_t *shape, uint64_t *bytes_p, uint64_t *recv_rows_p)
{
    *recv_rows_p = shape->tokens;
    if (__builtin_mul_overflow(shape->tokens * shape->slots, row_bytes(shape) + input_row_bytes(shape), bytes_p))
        return XEP_ERR_INVALID;
    return XEP_OK;
}

static char *rows_of(const solo_t *mode, uint32_t slot)
{
    const xep_shape_t *shape = mode->env->shape;
    return (char *)mode->env->heap + slot * shape->tokens * (mode->row_bytes + mode->input_row_bytes);
}

static char *input_of(const solo_t *mode, uint32_t slot)
{
    return rows_of(mode, slot) + mode->env->shape->tokens * mode->row_bytes;
}

static void solo_close(void *mode_in)
{
    solo_t *mode = mode_in;
    for (uint32_t i = 0; i < mode->env->shape->slots; i++) {
        free(mode->slots[i].src_token);
        free(mode->slots[i].topk_idx);
        free(mode->slots[i].topk_weights);
        free(mode->slots[i].expert_rows);
    }
    free(mode);
}

static int slot_open(slot_t *slot, const xep_shape_t *shape)
{
    slot->src_token = calloc(shape->tokens, sizeof(int32_t));
    slot->topk_idx = calloc(shape->tokens * shape->topk, sizeof(int64_t));
    slot->topk_weights = calloc(shape->tokens * shape->topk, sizeof(float));
    slot->expert_rows = calloc(shape->experts, sizeof(uint64_t));
    return slot->src_token != NULL && slot->topk_idx != NULL && slot->topk_weights != NULL && slot->expert_rows != NULL;
}

static xep_status_t solo_open(const xep_env_t *env, void **mode_p)
{
    const xep_shape_t *shape = env->shape;
    if (shape->nranks != 1)
        return env->fail(env, NULL, XEP_ERR_UNSUPPORTED, "solo serves a group of one rank, this one has %u", shape->nranks);
    solo_t *mode = calloc(1, sizeof *mode + shape->slots * sizeof mode->slots[0]);
    if (mode == NULL) return env->fail(env, NULL, XEP_ERR_NO_MEMORY, "no memory for %u slots", shape->slots);
    mode->env = env;
    mode->row_bytes = row_bytes(shape);
    mode->input_row_bytes = input_row_bytes(shape);
    for (uint32_t i = 0; i < shape->slots; i++)
        if (!slot_open(&mode->slots[i], shape)) {
            solo_close(mode);
            return env->fail(env, NULL, XEP_ERR_NO_MEMORY, "no memory for %llu tokens", (unsigned long long)shape->tokens);
        }
    env->prefault(env, env->heap, env->heap_bytes);
    *mode_p = mode;
    return XEP_OK;
}

/* ---- dispatch ---- */

/* A mode calls nothing of the library: not even xep_dtype_size(). */
static size_t element_bytes(xep_dtype_t dtype)
{
    static const unsigned char bytes[] = {[XEP_BF16] = 2, [XEP_FP16] = 2,  [XEP_FP32] = 4,  [XEP_E4M3] = 1, [XEP_E5M2] = 1,
                                          [XEP_U8] = 1,   [XEP_INT32] = 4, [XEP_INT64] = 8, [XEP_FP64] = 8};
    return bytes[dtype];
}

static int64_t expert_at(const xep_dispatch_args_t *args, uint64_t token, uint32_t k)
{
    const char *row = (const char *)args->topk_idx + token * args->topk_idx_stride;
    return args->topk_idx_dtype == XEP_INT32 ? ((const int32_t *)row)[k] : ((const int64_t *)row)[k];
}

/* how many selections token has; -1: one of them is no expert */
static int selections(const solo_t *mode, const xep_dispatch_args_t *args, uint64_t token)
{
    int count = 0;
    for (uint32_t k = 0; k < args->topk; k++) {
        int64_t expert = expert_at(args, token, k);
        if (expert < -1 || expert >= (int64_t)mode->env->shape->experts) return -1;
        count += expert != -1;
    }
    return count;
}

static void move_row(solo_t *mode, const xep_op_t *op, uint64_t token, uint64_t row, size_t bytes)
{
    const xep_dispatch_args_t *args = op->dispatch;
    slot_t *slot = &mode->slots[op->slot];
    size_t index_bytes = args->topk_idx_dtype == XEP_INT32 ? 4 : 8;
    memcpy(rows_of(mode, op->slot) + row * mode->row_bytes, (const char *)args->x + token * args->x_stride, bytes);
    memcpy((char *)slot->topk_idx + row * args->topk * index_bytes,
           (const char *)args->topk_idx + token * args->topk_idx_stride, args->topk * index_bytes);
    slot->src_token[row] = (int32_t)token;
    for (uint32_t k = 0; k < args->topk; k++) {
        int64_t expert = expert_at(args, token, k);
        if (expert != -1) slot->expert_rows[expert]++;
        if (args->topk_weights == NULL) continue;
        const float *weights = (const float *)(const void *)((const char *)args->topk_weights + token * args->topk_weights_stride);
        slot->topk_weights[row * args->topk + k] = expert == -1 ? 0 : weights[k];
    }
}

static void fill_recv(const solo_t *mode, const xep_op_t *op, uint64_t rows)
{
    const xep_dispatch_args_t *args = op->dispatch;
    const xep_shape_t *shape = mode->env->shape;
    const slot_t *slot = &mode->slots[op->slot];
    *op->recv = (xep_recv_t){.size = sizeof(xep_recv_t),
                             .arrangement = XEP_ROWS_BY_RANK,
                             .rows = rows,
                             .capacity = rows,
                             .x = rows_of(mode, op->slot),
                             .x_stride = mode->row_bytes,
                             .dtype = args->dtype,
                             .hidden = args->hidden,
                             .topk = args->topk,
                             .topk_idx_dtype = args->topk_idx_dtype,
                             .topk_idx = slot->topk_idx,
                             .topk_weights = args->topk_weights == NULL ? NULL : slot->topk_weights,
                             .src_token = slot->src_token,
                             .src_begin = slot->src_begin,
                             .rank_rows = slot->rank_rows,
                             .local_experts = shape->experts,
                             .expert_rows = slot->expert_rows};
}

/* Refuses what it cannot serve before anything is written: after an error the operation never was. */
static xep_status_t check_dispatch(const solo_t *mode, xep_op_t *op)
{
    const xep_env_t *env = mode->env;
    const xep_dispatch_args_t *args = op->dispatch;
    if (op->cached_slot != XEP_NO_SLOT || args->scales != NULL || args->capacity != 0 || args->expert_alignment > 1)
        return env->fail(env, op, XEP_ERR_UNSUPPORTED, "solo has no cached dispatch, scales, capacity or alignment");
    if (args->quant != XEP_QUANT_NONE || args->arrangement > XEP_ROWS_BY_RANK || args->flags != 0 || args->expert_stats != NULL)
        return env->fail(env, op, XEP_ERR_UNSUPPORTED, "solo casts nothing, arranges rows by rank, and has no statistics");
    for (uint64_t t = 0; t < args->tokens; t++)
        if (selections(mode, args, t) < 0)
            return env->fail(env, op, XEP_ERR_INVALID, "a selection of token %llu is no expert", (unsigned long long)t);
    return XEP_OK;
}

static xep_status_t solo_dispatch(void *mode_in, xep_op_t *op)
{
    solo_t *mode = mode_in;
    slot_t *slot = &mode->slots[op->slot];
    const xep_dispatch_args_t *args = op->dispatch;
    uint64_t rows = 0;
    xep_status_t status = check_dispatch(mode, op);
    if (status != XEP_OK) return status;
    memset(slot->expert_rows, 0, mode->env->shape->experts * sizeof(uint64_t));
    for (uint64_t t = 0; t < args->tokens; t++)
        if (selections(mode, args, t) > 0) move_row(mode, op, t, rows++, args->hidden * element_bytes(args->dtype));
    slot->src_begin[1] = rows;
    slot->rank_rows[0] = (uint32_t)rows;
    slot->tokens = args->tokens;
    fill_recv(mode, op, rows);
    if (args->recv_rows_p != NULL) *args->recv_rows_p = rows;
    return XEP_OK;
}

/* ---- combine ---- */

static void bias_row(const xep_combine_args_t *args, uint64_t token, float *out)
{
    for (uint32_t h = 0; h < args->hidden; h++) out[h] = 0;
    for (int b = 0; b < 2; b++) {
        if (args->bias[b] == NULL) continue;
        const float *bias = (const float *)(const void *)((const char *)args->bias[b] + token * args->bias_stride[b]);
        for (uint32_t h = 0; h < args->hidden; h++) out[h] += bias[h];
    }
}

static xep_status_t solo_combine(void *mode_in, xep_op_t *op)
{
    solo_t *mode = mode_in;
    const xep_env_t *env = mode->env;
    const xep_combine_args_t *args = op->combine;
    const slot_t *slot = &mode->slots[op->slot];
    const char *x = args->x != NULL ? args->x : input_of(mode, op->slot);
    size_t stride = args->x != NULL ? args->x_stride : mode->input_row_bytes;
    if (args->dtype != XEP_FP32 || args->topk_weights != NULL || args->weights != NULL || args->flags != 0)
        return env->fail(env, op, XEP_ERR_UNSUPPORTED, "solo combines fp32, without weights");
    for (uint64_t t = 0, row = 0; t < slot->tokens; t++) {
        float *out = (float *)(void *)((char *)args->out + t * args->out_stride);
        bias_row(args, t, out);
        if (row == slot->src_begin[1] || (uint64_t)slot->src_token[row] != t) continue;
        const float *in = (const float *)(const void *)(x + row++ * stride);
        for (uint32_t h = 0; h < args->hidden; h++) out[h] += in[h];
    }
    return XEP_OK;
}

/* Everything was done when the operation began: there is nobody to wait for. */
static xep_status_t solo_progress(void *mode, xep_op_t *op)
{
    (void)mode, (void)op;
    return XEP_OK;
}

static xep_status_t solo_input(void *mode_in, uint32_t slot, void **base_p, size_t *stride_p)
{
    const solo_t *mode = mode_in;
    *base_p = input_of(mode, slot);
    *stride_p = mode->input_row_bytes;
    return XEP_OK;
}

static void solo_explain(void *mode, const xep_op_t *op, char *text, size_t bytes)
{
    (void)mode, (void)op;
    if (bytes > 0) text[0] = '\0';
}

/* The one name it exports; the library refuses any other abi and sizes than its own. */
__attribute__((visibility("default"))) extern const xep_plugin_t xep_plugin;
const xep_plugin_t xep_plugin = {
    .abi = XEP_PLUGIN_ABI,
    .size = sizeof(xep_plugin_t),
    .env_size = sizeof(xep_env_t),
    .op_bytes = sizeof(xep_op_t),
    .wire_ops_size = sizeof(xep_wire_ops_t),
    .op_size = 0,
    .name = "solo",
    .brief = "a group of one rank: the example of a mode",
    .heap_size = solo_heap_size,
    .open = solo_open,
    .close = solo_close,
    .dispatch = solo_dispatch,
    .combine = solo_combine,
    .progress = solo_progress,
    .input = solo_input,
    .explain = solo_explain,
};
