/* SPDX-License-Identifier: BSD-3-Clause */

/* The mode "normal" on threads that are ranks, all of them mapped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "threads_rig.h"

enum { RANKS = 4, TOKENS = 24, TOPK = 3, EXPERTS = 9, HIDDEN = 200, ROUNDS = 400 };

/** What a rank works on. */
typedef struct desk {
    threads_rank_t *rank;
    const xep_plugin_t *plugin;
    xep_recv_t recv;
    char *state; /* of the operation */
    threads_late_t late;
    float x[TOKENS][HIDDEN], out[TOKENS][HIDDEN], weights[TOKENS][TOPK], out_weights[TOKENS][TOPK];
    int64_t idx[TOKENS][TOPK];
} desk_t;

static int64_t expert_of(uint64_t round, uint32_t rank, uint32_t token, uint32_t k)
{
    uint64_t h = threads_hash(round * RANKS + rank, token, k);
    return h % 6 == 0 ? -1 : (int64_t)(h / 6 % EXPERTS);
}

/* Exact in any order of sums, so that only lost or early rows differ. */
static float value_of(uint64_t round, uint32_t rank, uint32_t token)
{
    return (float)(threads_hash(round, rank, token) % 1000);
}

static uint32_t owner_of(int64_t expert)
{
    return expert < 3 ? 0 : (uint32_t)(expert - 3) / 2 + 1; /* 3, 2, 2, 2 */
}

static int goes_to(uint64_t round, uint32_t rank, uint32_t token, uint32_t to)
{
    for (uint32_t k = 0; k < TOPK; k++) {
        int64_t expert = expert_of(round, rank, token, k);
        if (expert >= 0 && owner_of(expert) == to) return 1;
    }
    return 0;
}

static void dispatch(desk_t *desk, uint64_t round, uint32_t slot)
{
    xep_dispatch_args_t args = {.tokens = TOKENS, .x = desk->x, .x_stride = sizeof desk->x[0], .dtype = XEP_FP32,
                                .hidden = HIDDEN, .topk = TOPK, .topk_idx = desk->idx, .topk_idx_stride = sizeof desk->idx[0],
                                .topk_idx_dtype = XEP_INT64, .topk_weights = desk->weights[0],
                                .topk_weights_stride = sizeof desk->weights[0], .expert_alignment = 1};
    xep_op_t op = {.kind = XEP_OP_DISPATCH, .slot = slot, .cached_slot = XEP_NO_SLOT, .epoch = ++desk->rank->epoch,
                   .turn = desk->rank->turn++, .dispatch = &args, .recv = &desk->recv, .state = desk->state, .late = threads_late(&desk->late)};
    for (uint32_t t = 0; t < TOKENS; t++) {
        for (uint32_t k = 0; k < TOPK; k++) desk->idx[t][k] = expert_of(round, desk->rank->shape.rank, t, k);
        for (uint32_t k = 0; k < TOPK; k++) desk->weights[t][k] = (float)(k + 1);
        for (uint32_t h = 0; h < HIDDEN; h++) desk->x[t][h] = value_of(round, desk->rank->shape.rank, t) + (float)h;
    }
    if (desk->plugin->dispatch(desk->rank->mode, &op) != XEP_OK || threads_finish(desk->rank, &op) != XEP_OK) desk->rank->failure = "dispatch";
}

/* Rows are what their sources say; each has a multiple of it as the expert's output, written where combine reads it. */
static void experts_work(desk_t *desk, uint64_t round, uint32_t slot, float factor)
{
    size_t stride;
    uint64_t row = 0;
    char *input = desk->rank->failure ? NULL : threads_input(desk->rank, slot, &stride);
    if (input == NULL) return;
    for (uint32_t from = 0; from < RANKS; from++)
        for (uint32_t t = 0; t < TOKENS; t++) {
            const float *x = (const float *)((char *)desk->recv.x + row * desk->recv.x_stride);
            if (!goes_to(round, from, t, desk->rank->shape.rank)) continue;
            if (desk->recv.src_token[row] != (int32_t)t || x[0] != value_of(round, from, t) || x[HIDDEN - 1] != x[0] + HIDDEN - 1)
                desk->rank->failure = "a row is not what its source sent";
            for (uint32_t h = 0; h < HIDDEN; h++) ((float *)(void *)(input + row * stride))[h] = factor * x[h];
            row++;
        }
    if (row != desk->recv.rows) desk->rank->failure = "rows";
}

static void combine(desk_t *desk, uint64_t round, uint32_t slot, float factor)
{
    xep_combine_args_t args = {.dtype = XEP_FP32, .hidden = HIDDEN, .topk_weights = desk->recv.topk_weights,
                               .topk_weights_stride = TOPK * sizeof(float), .out = desk->out, .out_stride = sizeof desk->out[0],
                               .out_weights = desk->out_weights[0], .out_weights_stride = sizeof desk->out_weights[0]};
    xep_op_t op = {.kind = XEP_OP_COMBINE, .slot = slot, .cached_slot = XEP_NO_SLOT, .epoch = ++desk->rank->epoch,
                   .turn = desk->rank->turn - 1, .combine = &args, .recv = &desk->recv, .state = desk->state, .late = threads_late(&desk->late)};
    if (desk->rank->failure) return;
    if (desk->plugin->combine(desk->rank->mode, &op) != XEP_OK || threads_finish(desk->rank, &op) != XEP_OK) desk->rank->failure = "combine";
    for (uint32_t t = 0; t < TOKENS; t++) {
        float copies = 0;
        for (uint32_t to = 0; to < RANKS; to++) copies += (float)goes_to(round, desk->rank->shape.rank, t, to);
        for (uint32_t h = 0; h < HIDDEN; h++)
            if (desk->out[t][h] != factor * copies * desk->x[t][h]) desk->rank->failure = "a sum";
        for (uint32_t k = 0; k < TOPK; k++)
            if (desk->out_weights[t][k] != (desk->idx[t][k] < 0 ? 0 : (float)(k + 1))) desk->rank->failure = "a weight";
    }
}

static void play(threads_rank_t *rank)
{
    desk_t *desk = calloc(1, sizeof *desk);
    desk->rank = rank;
    desk->plugin = threads_plugin("normal");
    desk->state = malloc(desk->plugin->op_size);
    for (uint64_t round = 0; round < ROUNDS && !rank->failure; round++) {
        uint32_t slot = threads_hash(round, rank->shape.rank, 7) % rank->shape.slots;
        memset(desk->state, 0, desk->plugin->op_size);
        dispatch(desk, round, slot);
        for (int factor = 2; factor < 4; factor++) {
            experts_work(desk, round, slot, (float)factor);
            memset(desk->state, 0, desk->plugin->op_size);
            combine(desk, round, slot, (float)factor);
        }
    }
    free(desk->state);
    free(desk);
}

static void run(int delays)
{
    const xep_shape_t shape = {.nranks = RANKS, .experts = EXPERTS, .topk = TOPK, .hidden = HIDDEN, .elem_bytes = 4,
                               .combine_elem_bytes = 4, .slots = 2, .tokens = TOKENS};
    threads_run(threads_plugin("normal"), &shape, play, delays);
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
    return cmocka_run_group_tests_name("normal_threads", tests, NULL, NULL);
}
