/* SPDX-License-Identifier: BSD-3-Clause */

/* Combine, as a reader: each token's rows are found where their experts wrote them, and summed (step 5 of ll.h). */
#include <string.h>

#include "ll.h"

/* ---- where rows are ---- */

/* Own rows where the user has them, those of mapped owners in their input. */
static ll_source_t find_pulled(const ll_t *mode, const xep_op_t *op, uint32_t owner)
{
    const uint32_t self = mode->kit.shape->rank, there = ll_slot(mode, op->slot)->from[owner].slot;
    ll_source_t source = {.rows = mode->kit.base[owner] + xep_area_at(mode->layout.common.input, there),
                          .stride = mode->layout.common.combine_stride,
                          .begins = (const void *)(mode->kit.base[owner] + ll_table_offset(mode, there, self))};
    if (owner == self && op->combine->x != NULL) source.rows = op->combine->x, source.stride = op->combine->x_stride;
    return source;
}

/* Those of all others. */
ll_source_t ll_find_returned(const ll_t *mode, const xep_op_t *op)
{
    const ll_layout_t *at = &mode->layout;
    return (ll_source_t){.rows = xep_kit_own_area(&mode->kit, at->returned, op->slot), .stride = at->return_stride};
}

/*
 * The first row of this rank at each expert of owner. Copied out of the owner's table, which that rank may write again
 * when it has seen "read": each begin is counted up while rows are listed, and checked before it is used.
 */
static void load_begins(const ll_t *mode, uint32_t owner, const ll_source_t *source)
{
    const uint32_t first = mode->kit.first_expert[owner], count = mode->kit.first_expert[owner + 1] - first;
    if (source->begins != NULL) memcpy(&mode->next_row[first], source->begins, count * sizeof *source->begins);
}

/*
 * Own outputs may be the caller's memory, which ends with the rows received; those of others are in their heaps, which
 * have room for recv_rows.
 */
const char *ll_next_output(ll_t *mode, const xep_op_t *op, const ll_source_t *source, uint32_t expert)
{
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    const uint32_t self = mode->kit.shape->rank;
    const uint64_t row = mode->next_row[expert]++;
    int is_there = row < mode->layout.common.recv_rows;
    if (mode->kit.owner[expert] == self) {
        const size_t pair = (size_t)(expert - mode->kit.first_expert[self]) * mode->kit.shape->nranks + self;
        is_there = row - slot->pair_begin[pair] < slot->pair_count[pair];
    }
    return is_there ? source->rows + row * source->stride : NULL;
}

uint32_t ll_list_biases(ll_t *mode, const xep_op_t *op, uint64_t token, uint32_t n)
{
    const xep_combine_args_t *args = op->combine;
    for (int b = 0; b < 2; b++) {
        if (args->bias[b] == NULL) continue;
        mode->rows[n] = (const char *)args->bias[b] + token * args->bias_stride[b];
        mode->row_weights[n++] = 1.0f;
    }
    return n;
}

uint32_t ll_list_token(ll_t *mode, const xep_op_t *op, const ll_source_t *sources, uint64_t token, uint32_t n)
{
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    const xep_combine_args_t *args = op->combine;
    const int32_t *experts = ll_state(op)->experts + token * slot->topk;
    const float *weights = slot->weights + token * slot->topk;
    if (args->weights != NULL)
        weights = (const float *)(const void *)((const char *)args->weights + token * args->weights_stride);
    n = ll_list_biases(mode, op, token, n);
    for (uint32_t k = 0; k < slot->topk; k++) {
        if (experts[k] < 0) continue;
        const ll_source_t *source = &sources[mode->kit.owner[experts[k]]];
        mode->rows[n] = source->begins == NULL ? source->rows + (token * slot->topk + k) * source->stride
                                               : ll_next_output(mode, op, source, (uint32_t)experts[k]);
        if (mode->rows[n] == NULL) return UINT32_MAX;
        mode->row_weights[n++] = slot->weights_sent && args->weights == NULL ? 1.0f : weights[k];
    }
    return n;
}

/* One pass over all selections before the team starts: the counting up in next_row is of one thread. */
xep_status_t ll_list_outputs(ll_t *mode, xep_op_t *op, ll_list_token_fn list_token)
{
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    const ll_source_t *sources = mode->sources;
    uint32_t n = 0;
    for (uint32_t i = 0; i < op->with.count; i++) load_begins(mode, op->with.rank[i], &sources[op->with.rank[i]]);
    for (uint64_t t = 0; t < slot->tokens; t++) {
        mode->row_begin[t] = n;
        n = list_token(mode, op, sources, t, n);
        if (n == UINT32_MAX)
            return mode->kit.env->fail(mode->kit.env, op, XEP_ERR_PROTOCOL,
                                       "invalid place of a row of token %llu: no rows are there",
                                       (unsigned long long)t);
    }
    mode->row_begin[slot->tokens] = n;
    if (op->combine->missing != NULL) xep_masks_tell_missing(&mode->kit, op, slot->experts, slot->tokens, slot->topk);
    return XEP_OK;
}

/* ---- sums ---- */

typedef struct sum {
    ll_t *mode;
    const xep_op_t *op;
    xep_weigh_fn weigh;
} sum_t;

/* Rows were listed by token, so that threads share nothing but what they read. */
static void sum_share(void *arg, uint32_t thread, uint32_t nthreads)
{
    const sum_t *sum = arg;
    ll_t *mode = sum->mode;
    const xep_combine_args_t *args = sum->op->combine;
    uint64_t tokens = ll_slot(mode, sum->op->slot)->tokens, begin = tokens * thread / nthreads,
             end = tokens * (thread + 1) / nthreads;
    for (uint64_t t = begin; t < end; t++) {
        uint32_t from = mode->row_begin[t], behind = mode->row_begin[t + 1];
        sum->weigh((char *)args->out + t * args->out_stride, mode->rows + from, mode->row_weights + from, behind - from,
                   mode->row_begin[end] - behind, args->hidden);
    }
    xep_stores_fence();
}

/* Weights that were sent have been applied by the experts. */
xep_status_t ll_sum_rows(ll_t *mode, xep_op_t *op)
{
    const xep_env_t *env = mode->kit.env;
    const xep_combine_args_t *args = op->combine;
    const uint64_t tokens = ll_slot(mode, op->slot)->tokens;
    xep_status_t status = ll_list_outputs(mode, op, ll_list_token);
    if (status != XEP_OK) return status;
    /* what is summed takes the room that the sums would have in the caches */
    uint64_t bytes = (mode->row_begin[tokens] + tokens) * args->hidden * xep_elem_bytes(args->dtype);
    sum_t sum = {mode, op, xep_weigh_select(args->dtype, env->simd, bytes >= env->stream_bytes)};
    env->parallel(env, sum_share, &sum);
    return XEP_OK;
}

xep_status_t ll_sum_pulled(void *opaque, xep_op_t *op)
{
    ll_t *mode = opaque;
    for (uint32_t r = 0; r < mode->kit.shape->nranks; r++) mode->sources[r] = find_pulled(mode, op, r);
    return ll_sum_rows(mode, op);
}

void ll_find_outputs(ll_t *mode, const xep_op_t *op)
{
    for (uint32_t r = 0; r < mode->kit.shape->nranks; r++)
        mode->sources[r] = mode->kit.base[r] != NULL ? find_pulled(mode, op, r) : ll_find_returned(mode, op);
}

/* Own rows, and biases, may still be coming. */
xep_status_t ll_sum(void *opaque, xep_op_t *op)
{
    ll_t *mode = opaque;
    if (op->coming != 0) return XEP_INPROGRESS;
    ll_find_outputs(mode, op);
    return ll_sum_rows(mode, op);
}
