/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 1 2 4, limit: 120 */

/*
 * Low latency through the public interface: one program that every mode runs, two batches that overlap, slots, statistics,
 * what a mode refuses, two modes on one group from one thread and from two, and a reset.
 */

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "mp_rig.h"

enum { EXPERTS = 12, TOPK = 3, HIDDEN = 96, TOKENS = 10, SLOTS = 2 };

/* Small integers and weights that are eighths: every sum is exact in every order and every mode. */
typedef struct batch {
    float x[TOKENS][HIDDEN], out[TOKENS][HIDDEN], weights[TOKENS][TOPK];
    int64_t idx[TOKENS][TOPK];
} batch_t;

static void batch_fill(batch_t *b, unsigned seed)
{
    for (unsigned t = 0; t < TOKENS; t++) {
        for (unsigned h = 0; h < HIDDEN; h++) b->x[t][h] = (float)((seed + t * 5 + h * 3 + mp_rank()) % 17) - 8;
        for (unsigned k = 0; k < TOPK; k++) {
            b->idx[t][k] = (seed + t * 7 + k * 5 + mp_rank()) % EXPERTS;
            if ((seed + t + k) % 9 == 0) b->idx[t][k] = -1;
            b->weights[t][k] = (float)((t + k) % 8 + 1) / 8;
        }
    }
    memset(b->out, 0xa5, sizeof b->out);
}

static void batch_check(const batch_t *b)
{
    for (unsigned t = 0; t < TOKENS; t++) {
        float factor = 0; /* expert e multiplies by e + 1 */
        for (unsigned k = 0; k < TOPK; k++)
            if (b->idx[t][k] >= 0) factor += b->weights[t][k] * (float)(b->idx[t][k] + 1);
        for (unsigned h = 0; h < HIDDEN; h++) MP_CHECK(b->out[t][h] == factor * b->x[t][h]);
    }
}

static xep_buffer_t *make_buffer(xep_group_t *group, const char *mode)
{
    xep_buffer_params_t p = XEP_BUFFER_PARAMS_INIT;
    xep_buffer_t *buffer;
    p.mode = mode, p.experts = EXPERTS, p.topk = TOPK, p.hidden = HIDDEN, p.tokens = TOKENS, p.slots = SLOTS;
    p.dtype = XEP_FP32, p.combine_dtype = XEP_FP32;
    MP_OK(xep_buffer_create(group, &p, &buffer));
    return buffer;
}

static xep_dispatch_args_t dispatch_args(const batch_t *b)
{
    xep_dispatch_args_t a = XEP_DISPATCH_ARGS_INIT;
    a.tokens = TOKENS, a.x = b->x, a.topk_idx = b->idx[0], a.topk_weights = b->weights[0];
    return a;
}

/* What xep.h says is right in every mode. */
static void experts(xep_handle_t *handle)
{
    const xep_recv_t *r = xep_handle_recv(handle);
    size_t stride;
    char *y = xep_handle_combine_input(handle, &stride);
    MP_CHECK(r != NULL && y != NULL);
    for (uint64_t row = 0; row < r->rows; row++) {
        const float *x = (const float *)(const void *)((const char *)r->x + row * r->x_stride);
        float factor = 0;
        for (uint32_t k = 0; k < r->topk; k++) {
            int64_t e = ((const int64_t *)r->topk_idx)[row * r->topk + k];
            if (e >= 0) factor += r->topk_weights[row * r->topk + k] * (float)(e + r->first_expert + 1);
        }
        for (uint32_t h = 0; h < HIDDEN; h++) ((float *)(void *)(y + row * stride))[h] = factor == 0 ? 0 : factor * x[h];
    }
}

static void combine(xep_handle_t *handle, batch_t *b, xep_request_t **req_p)
{
    xep_combine_args_t a = XEP_COMBINE_ARGS_INIT;
    a.out = b->out;
    MP_OK(xep_combine(handle, &a, req_p));
}

static void round_trip(xep_buffer_t *buffer, unsigned seed, uint32_t flags)
{
    batch_t *b = malloc(sizeof *b);
    xep_handle_t *handle;
    batch_fill(b, seed);
    xep_dispatch_args_t a = dispatch_args(b);
    a.flags = flags;
    MP_OK(xep_dispatch(buffer, &a, &handle, NULL));
    experts(handle);
    combine(handle, b, NULL);
    batch_check(b);
    xep_handle_release(handle);
    free(b);
}

/* Send A, send B, compute on A while B travels, and so on; a third dispatch finds no slot and changes nothing. */
static void two_batches(xep_buffer_t *buffer)
{
    batch_t *b = malloc(2 * sizeof *b);
    for (unsigned round = 0; round < 50; round++) {
        xep_handle_t *handle[2], *none = NULL;
        xep_request_t *sent[2], *summed[2];
        for (unsigned i = 0; i < 2; i++) {
            batch_fill(&b[i], round * 2 + i);
            xep_dispatch_args_t a = dispatch_args(&b[i]);
            MP_OK(xep_dispatch(buffer, &a, &handle[i], &sent[i]));
        }
        xep_dispatch_args_t more = dispatch_args(&b[0]);
        MP_FAILS(XEP_ERR_BUSY, xep_dispatch(buffer, &more, &none, NULL));
        MP_CHECK(none == NULL);
        for (unsigned n = 0; n < 2; n++) {
            unsigned i = (n + round + mp_rank()) % 2; /* received in another order on every other rank */
            MP_OK(xep_request_wait(sent[i]));
            xep_request_free(sent[i]);
            experts(handle[i]);
        }
        for (unsigned i = 0; i < 2; i++) combine(handle[i], &b[i], &summed[i]);
        for (unsigned i = 0; i < 2; i++) {
            MP_OK(xep_request_wait(summed[i]));
            xep_request_free(summed[i]);
            batch_check(&b[i]);
            xep_handle_release(handle[i]);
        }
    }
    free(b);
}

static void statistics(xep_buffer_t *buffer)
{
    int32_t stats[EXPERTS + 1], before[EXPERTS + 1];
    uint64_t counted[EXPERTS] = {0};
    batch_t *b = malloc(sizeof *b);
    for (int e = 0; e <= EXPERTS; e++) stats[e] = before[e] = 100 * e;
    for (unsigned seed = 0; seed < 3; seed++) {
        xep_handle_t *handle;
        batch_fill(b, seed);
        xep_dispatch_args_t a = dispatch_args(b);
        a.expert_stats = stats;
        MP_OK(xep_dispatch(buffer, &a, &handle, NULL));
        const xep_recv_t *r = xep_handle_recv(handle);
        for (uint32_t e = 0; e < r->local_experts; e++) counted[e] += r->expert_count[e];
        xep_handle_release(handle);
    }
    for (int e = 0; e <= EXPERTS; e++) MP_CHECK(stats[e] == before[e] + (e < EXPERTS ? (int32_t)counted[e] : 0));
    free(b);
}

/* What the other mode does is refused by name, before anything is sent. */
static void refusals(xep_buffer_t *normal, xep_buffer_t *ll)
{
    batch_t *b = malloc(sizeof *b);
    xep_handle_t *handle = NULL;
    batch_fill(b, 1);
    xep_dispatch_args_t a = dispatch_args(b);
    a.quant = XEP_QUANT_E4M3;
    MP_FAILS(XEP_ERR_UNSUPPORTED, xep_dispatch(normal, &a, &handle, NULL));
    a = dispatch_args(b);
    a.arrangement = XEP_ROWS_BY_EXPERT_PADDED;
    MP_FAILS(XEP_ERR_UNSUPPORTED, xep_dispatch(normal, &a, &handle, NULL));
    a.arrangement = XEP_ROWS_BY_RANK;
    MP_FAILS(XEP_ERR_UNSUPPORTED, xep_dispatch(ll, &a, &handle, NULL));
    MP_REASON("XEP_ROWS_BY_RANK");
    a = dispatch_args(b);
    a.quant = (xep_quant_t)9;
    MP_FAILS(XEP_ERR_INVALID, xep_dispatch(ll, &a, &handle, NULL));
    MP_REASON("quant");
    a = dispatch_args(b);
    a.topk_weights = NULL, a.flags = XEP_DISPATCH_SEND_WEIGHTS;
    MP_FAILS(XEP_ERR_INVALID, xep_dispatch(ll, &a, &handle, NULL));
    MP_CHECK(handle == NULL);
    free(b);
}

static void *many_rounds(void *buffer)
{
    for (unsigned i = 0; i < 100; i++) round_trip(buffer, i, 0);
    return NULL;
}

static void two_threads(xep_buffer_t *normal, xep_buffer_t *ll)
{
    pthread_t thread;
    MP_CHECK(pthread_create(&thread, NULL, many_rounds, normal) == 0);
    many_rounds(ll);
    pthread_join(thread, NULL);
}

/* An operation that not all ranks begin ends at its deadline, says for whom it waited, and a reset makes all well. */
static void reset(xep_buffer_t *ll)
{
    if (mp_rank() == 0 && mp_nranks() > 1) {
        batch_t *b = malloc(sizeof *b);
        xep_handle_t *handle = NULL;
        batch_fill(b, 1);
        xep_dispatch_args_t a = dispatch_args(b);
        a.timeout_ms = 200;
        MP_FAILS(XEP_ERR_TIMEOUT, xep_dispatch(ll, &a, &handle, NULL));
        MP_REASON("rank 1");
        MP_FAILS(XEP_ERR_BROKEN, xep_dispatch(ll, &a, &handle, NULL));
        free(b);
    }
    MP_OK(xep_buffer_reset(ll));
    for (unsigned i = 0; i < 10; i++) round_trip(ll, i, 0);
}

int main(void)
{
    xep_group_t *group = mp_group();
    xep_buffer_t *normal = make_buffer(group, "normal"), *ll = make_buffer(group, "ll");
    for (unsigned i = 0; i < 40; i++) round_trip(i % 2 ? ll : normal, i, 0);
    for (unsigned i = 0; i < 5; i++) round_trip(ll, i, XEP_DISPATCH_SEND_WEIGHTS);
    two_batches(ll);
    statistics(ll);
    refusals(normal, ll);
    two_threads(normal, ll);
    reset(ll);
    xep_buffer_destroy(normal);
    xep_buffer_destroy(ll);
    xep_group_destroy(group);
    return 0;
}
