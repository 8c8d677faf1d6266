/* SPDX-License-Identifier: BSD-3-Clause */

/* Combine: steps 1 to 6 of the protocol in normal.h. */
#include <string.h>

#include "normal_coded.h"
#include "normal_steps.h"

/* ---- steps 2 and 3 for a reader that is not mapped: rows, weights, the offer ---- */

/* Rows, or weights, of one reader: they are neighbours here, by source, and there, in its area "returned". */
void normal_returned_transfer(const normal_t *mode, const xep_op_t *op, uint32_t rank, uint32_t weights,
                              xep_transfer_t *transfer)
{
    const xep_combine_args_t *args = op->combine;
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    const normal_routing_t *routing = slot->routing;
    const normal_range_t range = normal_shows(mode, slot, rank);
    size_t weights_bytes = routing->topk * sizeof(float), src_stride = args->topk_weights_stride;
    const char *src = (const char *)args->topk_weights;

    const uint64_t end = range.at + range.rows, here = op->recv->rows - op->coming;

    if (!weights) src = xep_combine_outputs(&mode->kit, op, &src_stride);
    *transfer = (xep_transfer_t){
        .src = src + (src != NULL ? range.at * src_stride : 0),
        .src_stride = src_stride,
        .rows = src != NULL ? range.rows : 0,
        /*
         * rows of outputs come in order, so the missing ones are the last: of this range those behind "here"; weights
         * are here from the beginning
         */
        .coming = src == NULL || weights || here >= end ? 0
                  : here < range.at                     ? range.rows
                                                        : end - here,
        .bytes = weights ? weights_bytes : xep_combine_row_bytes(args),
        .stride = weights ? weights_bytes : mode->layout.common.combine_stride,
    };
    transfer->offset =
        xep_area_at(weights ? mode->layout.returned_weights : mode->layout.returned, slot->from[rank].slot) +
        (normal_returned_begin(mode, slot, rank, mode->kit.shape->rank) + range.first) * transfer->stride;
}

/* Rows first, then weights, the offer last: the wire delivers its word after both. */
int normal_combine_transfer(const void *opaque, const xep_op_t *op, uint32_t rank, uint32_t number,
                            xep_transfer_t *transfer)
{
    const normal_t *mode = opaque;
    if (number < NORMAL_RETURNED_TRANSFERS) normal_returned_transfer(mode, op, rank, number, transfer);
    else xep_combine_offer_transfer(&mode->kit, op, transfer);
    return number <= NORMAL_RETURNED_TRANSFERS;
}

/* ---- step 5: where rows are ---- */

/* A row of a combine and its weights, in areas of a slot that begin at x and weights. */
static normal_place_t place_of(const normal_t *mode, char *x, char *weights, uint32_t topk, uint64_t row)
{
    const size_t stride = mode->layout.common.combine_stride, weights_stride = topk * sizeof(float);
    return (normal_place_t){.x = x + row * stride,
                            .x_stride = stride,
                            .weights = weights + row * weights_stride,
                            .weights_stride = weights_stride};
}

normal_place_t normal_input_place(const normal_t *mode, char *heap, uint32_t slot, uint32_t topk, uint64_t row)
{
    const normal_layout_t *at = &mode->layout;
    return place_of(mode, heap + xep_area_at(at->common.input, slot), heap + xep_area_at(at->input_weights, slot), topk,
                    row);
}

normal_place_t normal_returned_place(const normal_t *mode, char *heap, uint32_t slot, uint32_t topk, uint64_t row)
{
    const normal_layout_t *at = &mode->layout;
    return place_of(mode, heap + xep_area_at(at->returned, slot), heap + xep_area_at(at->returned_weights, slot), topk,
                    row);
}

/* Own outputs are read where the user has them, and are never copied. */
normal_place_t normal_outputs_at(const normal_t *mode, const xep_op_t *op, uint32_t owner, uint64_t row)
{
    const xep_combine_args_t *args = op->combine;
    const uint32_t there = *xep_combine_slot_there(&mode->kit, op->slot, owner);
    normal_place_t at =
        normal_input_place(mode, mode->kit.base[owner], there, normal_slot(mode, op->slot)->routing->topk, row);
    if (owner != mode->kit.shape->rank) return at;
    at.x = (char *)xep_combine_outputs(&mode->kit, op, &at.x_stride);
    at.x += row * at.x_stride;
    if (args->topk_weights == NULL) return at;
    at.weights = (char *)args->topk_weights + row * args->topk_weights_stride;
    at.weights_stride = args->topk_weights_stride;
    return at;
}

/* Where the rows lie that others returned, from this row on: in the type of the rows, or encoded. */
normal_place_t normal_returned_at(const normal_t *mode, const xep_op_t *op, uint64_t row)
{
    const uint32_t topk = normal_slot(mode, op->slot)->routing->topk;
    normal_place_t at = normal_returned_place(mode, mode->kit.own, op->slot, topk, row);
    if (!xep_kit_state(op)->casts) return at;
    at.x_stride = normal_state(op)->codec.stride;
    at.x = xep_kit_own_area(&mode->kit, mode->layout.returned, op->slot) + row * at.x_stride;
    return at;
}

/* Rows of mapped owners are read in their memory; those of all others in this rank's slot, where they were put. */
void normal_find_source(const normal_t *mode, const xep_op_t *op, uint32_t owner)
{
    normal_slot_t *slot = normal_slot(mode, op->slot);
    const uint32_t self = mode->kit.shape->rank;
    slot->sources[owner] = mode->kit.base[owner] != NULL
                               ? normal_outputs_at(mode, op, owner, slot->there[owner])
                               : normal_returned_at(mode, op, normal_returned_begin(mode, slot, self, owner));
}

/* ---- step 5: sums ---- */

typedef struct sum sum_t;
struct sum {
    const normal_t *mode;
    const xep_op_t *op;
    xep_weigh_fn weigh;
    xep_weigh_fn round; /* of rows of the own node, which are read again at once */
    normal_terms_t terms;
    uint64_t begin, end; /* tokens */
    /* Sums rows [n], those of the terms last; the thread has scratch of its own. */
    void (*add)(const sum_t *sum, uint64_t token, void *out, const void **rows, size_t n, uint32_t thread);
};

void normal_sum_weights(float *out, uint32_t topk, const normal_place_t *sources, const normal_dest_t *terms,
                        uint64_t count)
{
    for (uint32_t k = 0; k < topk; k++) {
        float total = 0;
        for (uint64_t i = 0; i < count; i++) {
            const normal_place_t *source = &sources[terms[i].rank];
            float weight;
            memcpy(&weight, source->weights + terms[i].row * source->weights_stride + k * sizeof weight, sizeof weight);
            total += weight;
        }
        memcpy(&out[k], &total, sizeof total);
    }
}

/* Biases first, then the terms in their order, which is what makes sums the same on every run. Returns how many. */
static size_t list_rows(const sum_t *sum, uint64_t token, const void **rows)
{
    const xep_combine_args_t *args = sum->op->combine;
    const normal_place_t *sources = normal_slot(sum->mode, sum->op->slot)->sources;
    size_t n = 0;
    for (int b = 0; b < 2; b++)
        if (args->bias[b] != NULL) rows[n++] = (const char *)args->bias[b] + token * args->bias_stride[b];
    for (uint64_t i = sum->terms.first[token]; i < sum->terms.first[token + 1]; i++) {
        const normal_dest_t term = sum->terms.of[i];
        rows[n++] = sources[term.rank].x + term.row * sources[term.rank].x_stride;
    }
    return n;
}

static void add_rows(const sum_t *sum, uint64_t token, void *out, const void **rows, size_t n, uint32_t thread)
{
    (void)thread;
    sum->weigh(out, rows, NULL, n, token + 1 < sum->end ? XEP_WEIGH_GOES_ON : 0, sum->op->combine->hidden);
}

/* Rows of the own node become one, which is rounded as those of other nodes were. */
static void add_rounded(const sum_t *sum, uint64_t token, void *out, const void **rows, size_t n, uint32_t thread)
{
    char *own = sum->mode->own_sums + thread * sum->mode->layout.common.combine_stride;
    char *const *base = sum->mode->kit.base;
    const uint64_t first = sum->terms.first[token], count = sum->terms.first[token + 1] - first;
    const normal_dest_t *terms = sum->terms.of + first;
    const void **of_terms = rows + n - count;
    uint64_t begin = 0, end;
    while (begin < count && base[terms[begin].rank] == NULL) begin++;
    for (end = begin; end < count && base[terms[end].rank] != NULL; end++) {}
    if (end - begin > 1) {
        sum->round(own, of_terms + begin, NULL, end - begin, 0, sum->op->combine->hidden);
        of_terms[begin] = own;
        memmove(of_terms + begin + 1, of_terms + end, (count - end) * sizeof *of_terms);
        n -= end - begin - 1;
    }
    add_rows(sum, token, out, rows, n, thread);
}

/* Those of mapped ranks are bf16 already, and stay where they are. */
static void add_coded(const sum_t *sum, uint64_t token, void *out, const void **rows, size_t n, uint32_t thread)
{
    const normal_t *mode = sum->mode;
    const uint64_t first = sum->terms.first[token], count = sum->terms.first[token + 1] - first;
    const size_t stride = xep_row_stride(xep_combine_row_bytes(sum->op->combine));
    char *to = normal_thread_rows(mode, thread);
    for (uint64_t i = 0; i < count; i++, to += stride) {
        if (mode->kit.base[sum->terms.of[first + i].rank] != NULL) continue;
        xep_codec_decode(&normal_state(sum->op)->codec, (uint16_t *)(void *)to, rows[n - count + i]);
        rows[n - count + i] = to;
    }
    sum->weigh(out, rows, NULL, n, 0, sum->op->combine->hidden);
}

/* Each thread has consecutive tokens, and its own list for their rows. */
static void sum_tokens(void *arg, uint32_t thread, uint32_t nthreads)
{
    const sum_t *sum = arg;
    const normal_t *mode = sum->mode;
    const xep_combine_args_t *args = sum->op->combine;
    const normal_slot_t *slot = normal_slot(mode, sum->op->slot);
    const uint64_t tokens = sum->end - sum->begin, end = sum->begin + tokens * (thread + 1) / nthreads;
    const size_t first = (size_t)thread * (mode->layout.max_dests + 2);
    const void **rows = mode->rows + first;
    for (uint64_t t = sum->begin + tokens * thread / nthreads; t < end; t++) {
        const size_t n = list_rows(sum, t, rows);
        sum->add(sum, t, (char *)args->out + t * args->out_stride, rows, n, thread);
        if (args->out_weights != NULL)
            normal_sum_weights((float *)((char *)args->out_weights + t * args->out_weights_stride), slot->routing->topk,
                               slot->sources, sum->terms.of + sum->terms.first[t],
                               sum->terms.first[t + 1] - sum->terms.first[t]);
    }
    xep_stores_fence();
}

void normal_sum_tokens(normal_t *mode, xep_op_t *op, const normal_terms_t *terms, uint64_t end)
{
    static void (*const adding[])(const sum_t *, uint64_t, void *, const void **, size_t, uint32_t) =
        {[NORMAL_ALIKE] = add_rows, [NORMAL_ROUNDED] = add_rounded, [NORMAL_CODED] = add_coded};
    const xep_env_t *env = mode->kit.env;
    const xep_combine_args_t *args = op->combine;
    const normal_routing_t *routing = normal_slot(mode, op->slot)->routing;
    normal_state_t *state = normal_state(op);
    /* the rows that are summed take the room in the caches that the sums would need */
    const uint64_t rows = routing->first[routing->tokens] + routing->tokens;
    const int streaming = rows * xep_combine_row_bytes(args) >= env->stream_bytes;
    sum_t sum = {.mode = mode,
                 .op = op,
                 .weigh = xep_weigh_select(args->dtype, env->simd, streaming),
                 .round = xep_weigh_select(args->dtype, env->simd, 0),
                 .terms = *terms,
                 .add = adding[terms->how],
                 .begin = state->moved,
                 .end = end};
    env->parallel(env, sum_tokens, &sum);
    state->moved = end;
    if (args->missing != NULL && end == routing->tokens)
        xep_masks_tell_missing(&mode->kit, op, routing->experts, end, routing->topk);
}

/* Own outputs are read where the user has them: so all of them must be here, and the biases, too. */
xep_status_t normal_sum_terms(normal_t *mode, xep_op_t *op, const normal_terms_t *terms)
{
    if (op->coming != 0) return XEP_INPROGRESS;
    for (uint32_t i = 0; i < op->with.count; i++) normal_find_source(mode, op, op->with.rank[i]);
    normal_sum_tokens(mode, op, terms, normal_slot(mode, op->slot)->routing->tokens);
    return XEP_OK;
}

xep_status_t normal_sum(void *mode, xep_op_t *op)
{
    const normal_routing_t *routing = normal_slot(mode, op->slot)->routing;
    return normal_sum_terms(mode, op, &(normal_terms_t){routing->first, routing->dests, NORMAL_ALIKE});
}
