/* SPDX-License-Identifier: BSD-3-Clause */

/* As an owner, what travels is made of rows; as a reader, rows of what came (ll_coded.h). */
#include "ll_coded.h"

#include <string.h>

static int is_encoded(const xep_op_t *op)
{
    return op->combine->quant != XEP_QUANT_NONE;
}

/* What an operation is, for the shares of a team. */
typedef struct coding {
    ll_t *mode;
    const xep_op_t *op;
    xep_weigh_fn weigh, weigh_out; /* of rows of the type; the last one, to out */
    xep_weigh_wide_fn widen;       /* the same to fp32 */
    uint64_t begin, end;           /* picks; as an owner */
} coding_t;

static coding_t coding_of(ll_t *mode, const xep_op_t *op, int streaming)
{
    const xep_simd_t simd = mode->kit.env->simd;
    const xep_dtype_t dtype = op->combine->dtype;
    return (coding_t){.mode = mode,
                      .op = op,
                      .weigh = xep_weigh_select(dtype, simd, 0),
                      .weigh_out = xep_weigh_select(dtype, simd, streaming),
                      .widen = xep_weigh_select_wide(simd)};
}

/* Rows of combine_stride that a thread has for itself: K and 2. */
static char *thread_rows(const ll_t *mode, uint32_t thread)
{
    return mode->decoded + thread * (mode->kit.shape->topk + UINT64_C(2)) * mode->layout.common.combine_stride;
}

/* ---- as an owner ---- */

/* Rows that travel as one, from this one on: of a sum all of the token. */
static uint64_t count_together(const xep_op_t *op, const ll_pick_t *pick, const ll_pick_t *end)
{
    uint64_t n = 1;
    while (ll_sums_at_owner(op) && pick + n < end && pick[n].token == pick->token) n++;
    return n;
}

/* Where what is made of the rows from this one on lies. */
static char *coded_row(const ll_t *mode, const xep_op_t *op, const ll_pick_t *pick)
{
    return ll_slot(mode, op->slot)->coded + pick->row * mode->layout.return_stride;
}

/* One rounding: to the type, or from fp32 to the format; LogFMT is made of bf16. */
static void code_sum(const coding_t *coding, const ll_pick_t *pick, uint64_t n, uint32_t thread)
{
    ll_t *mode = coding->mode;
    const xep_op_t *op = coding->op;
    const xep_codec_t *codec = &ll_state(op)->codec;
    const void **terms = mode->terms + (size_t)thread * mode->kit.shape->topk;
    char *to = coded_row(mode, op, pick), *sum = thread_rows(mode, thread);
    size_t stride;
    const char *rows = xep_combine_outputs(&mode->kit, op, &stride);
    for (uint64_t i = 0; i < n; i++) terms[i] = rows + pick[i].row * stride;
    if (codec->from == XEP_FP32) coding->widen((float *)(void *)sum, terms, n, op->combine->hidden);
    else coding->weigh(is_encoded(op) ? sum : to, terms, NULL, n, 0, op->combine->hidden);
    if (is_encoded(op)) xep_codec_encode(codec, to, sum);
}

static void code_rows(const coding_t *coding, const ll_pick_t *pick, uint64_t n, uint32_t thread)
{
    size_t stride;
    const char *rows = xep_combine_outputs(&coding->mode->kit, coding->op, &stride);
    if (ll_sums_at_owner(coding->op)) code_sum(coding, pick, n, thread);
    else
        xep_codec_encode(&ll_state(coding->op)->codec, coded_row(coding->mode, coding->op, pick),
                         rows + pick->row * stride);
}

/* The first pick of a token at or after this one. */
static uint64_t token_begin(const ll_list_t *list, uint64_t pick, uint64_t begin, uint64_t end)
{
    while (pick > begin && pick < end && list->picks[pick].token == list->picks[pick - 1].token) pick++;
    return pick;
}

/* A share of the picks from one on to another; tokens are not divided. */
static void code_share(void *arg, uint32_t thread, uint32_t nthreads)
{
    const coding_t *coding = arg;
    const ll_list_t *list = &ll_slot(coding->mode, coding->op->slot)->list;
    const uint64_t begin = coding->begin, end = coding->end, count = end - begin;
    const ll_pick_t *pick = list->picks + token_begin(list, begin + count * thread / nthreads, begin, end),
                    *last = list->picks + token_begin(list, begin + count * (thread + 1) / nthreads, begin, end);
    for (uint64_t n; pick < last; pick += n) {
        n = count_together(coding->op, pick, last);
        code_rows(coding, pick, n, thread);
    }
}

/* As many as are put before the wire goes on, by the whole team: while these travel, the next ones are coded. */
static void code_some(const ll_t *mode, const xep_op_t *op, uint64_t pick, uint64_t end)
{
    ll_state_t *state = ll_state(op);
    const ll_list_t *list = &ll_slot(mode, op->slot)->list;
    const uint64_t most = XEP_PUT_BYTES / mode->layout.return_stride + 1;
    coding_t coding = coding_of((ll_t *)(uintptr_t)mode, op, 0);
    if (pick >= state->coded_begin && pick < state->coded_end) return;
    coding.begin = state->coded_begin = pick;
    coding.end = state->coded_end = end - pick < most ? end : token_begin(list, pick + most, pick, end);
    mode->kit.env->parallel(mode->kit.env, code_share, &coding);
}

static int cut_coded(const void *opaque, const xep_op_t *op, uint32_t reader, uint32_t number, uint64_t *row_p,
                     xep_put_t *put)
{
    const ll_t *mode = opaque;
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    const ll_pick_t *pick = slot->list.picks + slot->list.begin[reader] + *row_p,
                    *end = slot->list.picks + slot->list.begin[reader + 1];
    const uint64_t returned = xep_area_at(mode->layout.returned, slot->from[reader].slot);
    (void)number;
    if (pick >= end) return 0;
    code_some(mode, op, slot->list.begin[reader] + *row_p, slot->list.begin[reader + 1]);
    const uint64_t place = (uint64_t)pick->token * slot->from[reader].topk + pick->k;
    *put = (xep_put_t){.src = coded_row(mode, op, pick),
                       .offset = returned + place * mode->layout.return_stride,
                       .bytes = xep_combine_row_bytes(op->combine),
                       .rows = count_together(op, pick, end)};
    if (is_encoded(op)) put->bytes = xep_codec_bytes(&ll_state(op)->codec, put->src);
    return 1;
}

/* All rows, then the offer. */
static int coded_transfer(const void *opaque, const xep_op_t *op, uint32_t reader, uint32_t number,
                          xep_transfer_t *transfer)
{
    const ll_t *mode = opaque;
    (void)reader;
    *transfer = (xep_transfer_t){.cut = cut_coded, .blocked = op->coming != 0};
    if (number == 1) xep_combine_offer_transfer(&mode->kit, op, transfer);
    return number <= 1;
}

/* ---- as a reader ---- */

/* The lowest rank, from this one on, that owns an expert of the token; XEP_NO_RANK where there is none. */
static uint32_t next_owner(const ll_t *mode, const int32_t *experts, uint32_t topk, uint32_t from)
{
    uint32_t least = XEP_NO_RANK;
    for (uint32_t k = 0; k < topk; k++) {
        if (experts[k] < 0) continue;
        const uint32_t owner = mode->kit.owner[experts[k]];
        if (owner >= from && owner < least) least = owner;
    }
    return least;
}

/* Whether a selection is of this owner. */
static int is_of(const ll_t *mode, int32_t expert, uint32_t owner)
{
    return expert >= 0 && mode->kit.owner[expert] == owner;
}

/* The rows of an owner, k ascending; of one that is not mapped their sum, at the first of them. */
static uint32_t list_owner(ll_t *mode, const xep_op_t *op, const ll_source_t *source, uint64_t token, uint32_t owner,
                           uint32_t n)
{
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    const int32_t *experts = ll_state(op)->experts + token * slot->topk;
    for (uint32_t k = 0; k < slot->topk; k++) {
        if (!is_of(mode, experts[k], owner)) continue;
        if (source->begins == NULL) {
            mode->rows[n] = source->rows + (token * slot->topk + k) * source->stride;
            return n + 1;
        }
        mode->rows[n] = ll_next_output(mode, op, source, (uint32_t)experts[k]);
        if (mode->rows[n++] == NULL) return UINT32_MAX;
    }
    return n;
}

/* ll_list_token_fn: owners ascending. */
static uint32_t list_sums(ll_t *mode, const xep_op_t *op, const ll_source_t *sources, uint64_t token, uint32_t n)
{
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    const int32_t *experts = ll_state(op)->experts + token * slot->topk;
    n = ll_list_biases(mode, op, token, n);
    for (uint32_t owner = next_owner(mode, experts, slot->topk, 0); owner != XEP_NO_RANK && n != UINT32_MAX;
         owner = next_owner(mode, experts, slot->topk, owner + 1))
        n = list_owner(mode, op, &sources[owner], token, owner, n);
    return n;
}

static const void *decode_row(const coding_t *coding, char *to, const void *row)
{
    if (!is_encoded(coding->op)) return row;
    xep_codec_decode(&ll_state(coding->op)->codec, (uint16_t *)(void *)to, row);
    return to;
}

/*
 * Decodes the rows of a token that came over the wire: those in "returned" of the slot, at most K of them, for which a
 * thread has room. All others are bf16 already, and stay where they are.
 */
static void decode_token(const coding_t *coding, uint64_t token, uint32_t thread)
{
    ll_t *mode = coding->mode;
    const char *begin = xep_kit_own_area(&mode->kit, mode->layout.returned, coding->op->slot),
               *end = begin + mode->kit.shape->tokens * mode->kit.shape->topk * mode->layout.return_stride;
    char *to = thread_rows(mode, thread);
    for (uint32_t i = mode->row_begin[token]; i < mode->row_begin[token + 1]; i++) {
        const char *row = mode->rows[i];
        if ((uintptr_t)row < (uintptr_t)begin || (uintptr_t)row >= (uintptr_t)end) continue;
        mode->rows[i] = decode_row(coding, to, row);
        to += mode->layout.common.combine_stride;
    }
}

/* The sum of each owner in place of its rows, as they were listed. Returns how many terms the token has then. */
static uint32_t sum_owners(const coding_t *coding, uint64_t token, uint32_t thread)
{
    ll_t *mode = coding->mode;
    const xep_op_t *op = coding->op;
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    const int32_t *experts = ll_state(op)->experts + token * slot->topk;
    const void **rows = mode->rows + mode->row_begin[token];
    const uint32_t biases = (op->combine->bias[0] != NULL) + (op->combine->bias[1] != NULL);
    char *to = thread_rows(mode, thread);
    uint32_t terms = biases, from = biases;
    for (uint32_t owner = next_owner(mode, experts, slot->topk, 0); owner != XEP_NO_RANK;
         owner = next_owner(mode, experts, slot->topk, owner + 1)) {
        uint32_t n = 0;
        for (uint32_t k = 0; k < slot->topk; k++) n += (uint32_t)is_of(mode, experts[k], owner);
        if (mode->sources[owner].begins == NULL) {
            rows[terms++] = decode_row(coding, to, rows[from++]);
        } else {
            coding->weigh(to, rows + from, NULL, n, 0, op->combine->hidden);
            rows[terms++] = to;
            from += n;
        }
        to += mode->layout.common.combine_stride;
    }
    return terms;
}

/* Rows were listed by token, so that threads share nothing but what they read. */
static void sum_share(void *arg, uint32_t thread, uint32_t nthreads)
{
    const coding_t *coding = arg;
    ll_t *mode = coding->mode;
    const xep_combine_args_t *args = coding->op->combine;
    const uint64_t tokens = ll_slot(mode, coding->op->slot)->tokens, end = tokens * (thread + 1) / nthreads;
    const int at_owner = ll_sums_at_owner(coding->op);
    for (uint64_t t = tokens * thread / nthreads; t < end; t++) {
        const uint32_t from = mode->row_begin[t];
        uint32_t n = mode->row_begin[t + 1] - from;
        if (at_owner) n = sum_owners(coding, t, thread);
        else decode_token(coding, t, thread);
        coding->weigh_out((char *)args->out + t * args->out_stride, mode->rows + from,
                          at_owner ? NULL : mode->row_weights + from, n, 0, args->hidden);
    }
    xep_stores_fence();
}

static xep_status_t sum_coded(void *opaque, xep_op_t *op)
{
    ll_t *mode = opaque;
    const xep_combine_args_t *args = op->combine;
    const uint64_t tokens = ll_slot(mode, op->slot)->tokens;
    if (op->coming != 0) return XEP_INPROGRESS;
    ll_find_outputs(mode, op);
    xep_status_t status = ll_list_outputs(mode, op, ll_sums_at_owner(op) ? list_sums : ll_list_token);
    if (status != XEP_OK) return status;
    const uint64_t bytes = (mode->row_begin[tokens] + tokens) * args->hidden * xep_elem_bytes(args->dtype);
    coding_t coding = coding_of(mode, op, bytes >= mode->kit.env->stream_bytes);
    mode->kit.env->parallel(mode->kit.env, sum_share, &coding);
    return XEP_OK;
}

const xep_step_t ll_coded_steps[] = {
    {.at = XEP_AT_SUM, .does = "decode and sum", .run = sum_coded, .kinds = XEP_KIND_CASTS},
    {0},
};
const xep_step_t ll_coded_wired_steps[] = {
    {.at = XEP_AT_OFFER, .run = xep_step_send, .transfers = coded_transfer, .kinds = XEP_KIND_CASTS},
    {0},
};

/* ---- begin ---- */

/* Memory for coded rows may have been short at open; then only what needs it is refused. */
xep_status_t ll_choose_coded(ll_t *mode, xep_op_t *op)
{
    const xep_env_t *env = mode->kit.env;
    const xep_combine_args_t *args = op->combine;
    const int sums = ll_sums_at_owner(op);
    xep_status_t status = sums ? ll_check_sums(mode, op) : XEP_OK;
    if (status != XEP_OK) return status;
    if (!sums && mode->kit.all_mapped) return XEP_OK;
    if (!mode->kit.all_mapped && ll_slot(mode, op->slot)->coded == NULL)
        return env->fail(env, op, XEP_ERR_NO_MEMORY, "there was no memory for encoded rows when the buffer was made");
    if (is_encoded(op))
        ll_state(op)->codec = xep_codec_select(args->quant, args->quant_scale, args->hidden, sums, env->simd);
    xep_kit_state(op)->casts = XEP_STEPS_CASTS;
    return XEP_OK;
}
