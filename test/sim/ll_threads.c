/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The mode "ll" on threads that are ranks: dispatches in flight on every slot, cast or not, received in another order on
 * each rank, then combines, with ranks stopped for a while at any instruction.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "threads_rig.h"

enum { RANKS = 4, TOKENS = 12, TOPK = 3, EXPERTS = 9, HIDDEN = 200, SLOTS = 3, ROUNDS = 150 };

/** An operation in flight and what it works on. */
typedef struct flight {
    xep_op_t op;
    threads_late_t late;
    xep_dispatch_args_t dispatch;
    xep_combine_args_t combine;
    xep_recv_t recv;
    char *state;
    uint64_t number; /* of the dispatch: all data follow from it and the rank */
    float x[TOKENS][HIDDEN], out[TOKENS][HIDDEN], weights[TOKENS][TOPK];
    int32_t idx[TOKENS][TOPK];
} flight_t;

static int32_t expert_of(uint64_t number, uint32_t rank, uint32_t token, uint32_t k)
{
    uint64_t h = threads_hash(number * RANKS + rank, token, k);
    return h % 6 == 0 ? -1 : (int32_t)(h / 6 % EXPERTS);
}

/* Powers of two: cast or not, every channel of a row is this times its scale, and sums are exact in any order. */
static float value_of(uint64_t number, uint32_t rank, uint32_t token)
{
    return (float)(1u << threads_hash(number, rank, token) % 8);
}

static uint64_t tokens_of(uint64_t number, uint32_t rank)
{
    return threads_hash(number, rank, 99) % (TOKENS + 1);
}

static void send(threads_rank_t *rank, const xep_plugin_t *plugin, flight_t *f, uint64_t number, uint32_t slot)
{
    uint32_t me = rank->shape.rank;
    f->number = number;
    for (uint32_t t = 0; t < TOKENS; t++) {
        for (uint32_t k = 0; k < TOPK; k++) f->idx[t][k] = expert_of(number, me, t, k), f->weights[t][k] = (float)(k + 1);
        for (uint32_t h = 0; h < HIDDEN; h++) f->x[t][h] = value_of(number, me, t);
    }
    f->dispatch = (xep_dispatch_args_t){.tokens = tokens_of(number, me), .x = f->x, .x_stride = sizeof f->x[0], .dtype = XEP_FP32,
                                        .hidden = HIDDEN, .topk = TOPK, .topk_idx = f->idx, .topk_idx_stride = sizeof f->idx[0],
                                        .topk_idx_dtype = XEP_INT32, .topk_weights = f->weights[0],
                                        .topk_weights_stride = sizeof f->weights[0], .expert_alignment = 1,
                                        .quant = number % 2 ? XEP_QUANT_E4M3_POW2 : XEP_QUANT_NONE};
    memset(f->state, 0, plugin->op_size);
    f->op = (xep_op_t){.kind = XEP_OP_DISPATCH, .slot = slot, .cached_slot = XEP_NO_SLOT, .epoch = ++rank->epoch, .turn = rank->turn++,
                       .dispatch = &f->dispatch, .recv = &f->recv, .state = f->state, .late = threads_late(&f->late)};
    if (plugin->dispatch(rank->mode, &f->op) != XEP_OK) rank->failure = "dispatch";
}

/* 256 is the only code of a power of two: its scale is the least power not below value / 448. */
static float received(const xep_recv_t *recv, uint64_t row, uint32_t h)
{
    const char *x = (const char *)recv->x + row * recv->x_stride;
    if (recv->quant == XEP_QUANT_NONE) return ((const float *)(const void *)x)[h];
    return x[h] == 0x78 ? 256 * *(const float *)((const char *)recv->scales + (ptrdiff_t)row * recv->scales_token_stride +
                                                  (ptrdiff_t)(h / 128) * recv->scales_stride)
                        : -1;
}

/* Row after row is what its source sent; expert e gives e + 1 times that. */
static void experts_work(threads_rank_t *rank, flight_t *f)
{
    const xep_recv_t *recv = &f->recv;
    size_t stride;
    uint64_t row = 0;
    char *input = threads_input(rank, f->op.slot, &stride);
    for (uint32_t e = 0; e < recv->local_experts && input; e++)
        for (uint32_t from = 0; from < RANKS; from++)
            for (uint32_t t = 0; t < tokens_of(f->number, from); t++)
                for (uint32_t k = 0; k < TOPK; k++) {
                    if (expert_of(f->number, from, t, k) != (int32_t)(recv->first_expert + e)) continue;
                    float value = value_of(f->number, from, t);
                    if (recv->src_token[row] != (int32_t)t || received(recv, row, 0) != value || received(recv, row, HIDDEN - 1) != value)
                        rank->failure = "a row is not what its source sent";
                    for (uint32_t h = 0; h < HIDDEN; h++)
                        ((float *)(void *)(input + row * stride))[h] = value * (float)(recv->first_expert + e + 1);
                    row++;
                }
    if (input && row != recv->rows) rank->failure = "rows";
}

static void send_back(threads_rank_t *rank, const xep_plugin_t *plugin, flight_t *f)
{
    f->combine = (xep_combine_args_t){.dtype = XEP_FP32, .hidden = HIDDEN, .out = f->out, .out_stride = sizeof f->out[0]};
    memset(f->state, 0, plugin->op_size);
    f->op = (xep_op_t){.kind = XEP_OP_COMBINE, .slot = f->op.slot, .cached_slot = XEP_NO_SLOT, .epoch = ++rank->epoch, .turn = f->op.turn,
                       .combine = &f->combine, .recv = &f->recv, .state = f->state, .late = threads_late(&f->late)};
    if (plugin->combine(rank->mode, &f->op) != XEP_OK) rank->failure = "combine";
}

static void check_sums(threads_rank_t *rank, const flight_t *f)
{
    for (uint32_t t = 0; t < f->dispatch.tokens; t++) {
        float factor = 0;
        for (uint32_t k = 0; k < TOPK; k++) factor += (float)((f->idx[t][k] + 1) * (int32_t)(k + 1)); /* 0 for -1 */
        for (uint32_t h = 0; h < HIDDEN; h++)
            if (f->out[t][h] != factor * f->x[t][h]) rank->failure = "a sum";
    }
}

/* All slots are sent before the first is received; which is first differs from rank to rank. */
static void play_round(threads_rank_t *rank, const xep_plugin_t *plugin, flight_t *flights, uint64_t round)
{
    uint32_t first = (uint32_t)(threads_hash(round, rank->shape.rank, 5) % SLOTS);
    for (uint32_t i = 0; i < SLOTS && !rank->failure; i++) send(rank, plugin, &flights[i], round * SLOTS + i, (i + first) % SLOTS);
    for (uint32_t i = 0; i < SLOTS && !rank->failure; i++) {
        flight_t *f = &flights[(i + first) % SLOTS];
        if (threads_finish(rank, &f->op) != XEP_OK) rank->failure = "dispatch";
        else experts_work(rank, f);
    }
    for (uint32_t i = 0; i < SLOTS && !rank->failure; i++) send_back(rank, plugin, &flights[i]);
    for (uint32_t i = 0; i < SLOTS && !rank->failure; i++) {
        flight_t *f = &flights[(i + first) % SLOTS];
        if (threads_finish(rank, &f->op) != XEP_OK) rank->failure = "combine";
        else check_sums(rank, f);
    }
}

static void play(threads_rank_t *rank)
{
    const xep_plugin_t *plugin = threads_plugin("ll");
    flight_t *flights = calloc(SLOTS, sizeof *flights);
    for (uint32_t i = 0; i < SLOTS; i++) flights[i].state = malloc(plugin->op_size);
    for (uint64_t round = 0; round < ROUNDS && !rank->failure; round++) play_round(rank, plugin, flights, round);
    for (uint32_t i = 0; i < SLOTS; i++) free(flights[i].state);
    free(flights);
}

static void run(int delays)
{
    const xep_shape_t shape = {.nranks = RANKS, .experts = EXPERTS, .topk = TOPK, .hidden = HIDDEN, .elem_bytes = 4,
                               .combine_elem_bytes = 4, .slots = SLOTS, .tokens = TOKENS};
    threads_run(threads_plugin("ll"), &shape, play, delays);
}

static void undisturbed(void **state)
{
    (void)state;
    run(0);
}

static void with_delays(void **state)
{
    (void)state;
    run(1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(undisturbed), cmocka_unit_test(with_delays)};
    return cmocka_run_group_tests_name("ll_threads", tests, NULL, NULL);
}
