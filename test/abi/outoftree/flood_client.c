/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * A user of the mode flood, on any number of ranks: every row of every rank is compared with its token, and every sum
 * with what the experts did to it.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xep/inspect.h>
#include <xep/xep.h>

enum { TOKENS = 9, HIDDEN = 37, TOPK = 3, EXPERTS = 5, ROUNDS = 6 };

static void check(xep_status_t status, const char *call)
{
    if (status == XEP_OK) return;
    fprintf(stderr, "%s: %s: %s\n", call, xep_status_name(status), xep_last_error());
    exit(1);
}

static void require(int condition, const char *what)
{
    if (condition) return;
    fprintf(stderr, "not so: %s\n", what);
    exit(1);
}

/* ranks dispatch different numbers of tokens; token 4 goes nowhere */
static uint64_t tokens_of(uint32_t rank, uint32_t round)
{
    return TOKENS - (rank + round) % 3;
}

static int64_t expert_of(uint32_t rank, uint64_t token, uint32_t k)
{
    return token == 4 || (token + k) % 4 == 3 ? -1 : (int64_t)((rank + token * 2 + k) % EXPERTS);
}

static float value_of(uint32_t rank, uint32_t round, uint64_t token, uint32_t h)
{
    return (float)(1000 * rank + 100 * token + h + round);
}

/* expert e gives e + 1 times the row; a row is the sum of what its experts here give */
static void run_experts(xep_handle_t *handle, const xep_recv_t *recv)
{
    size_t stride;
    void *base;
    check(xep_handle_combine_input(handle, &base, &stride), "xep_handle_combine_input");
    char *y = base;
    for (uint64_t row = 0; row < recv->rows; row++) {
        const float *x = (const float *)(const void *)((const char *)recv->x + row * recv->x_stride);
        const int64_t *local = (const int64_t *)recv->topk_idx + row * recv->topk;
        float *out = memset(y + row * stride, 0, HIDDEN * sizeof *out);
        for (uint32_t k = 0; k < recv->topk; k++)
            for (uint32_t h = 0; h < HIDDEN && local[k] >= 0; h++)
                out[h] += (float)(local[k] + recv->first_expert + 1) * x[h];
    }
}

static void compare_rows(const xep_recv_t *recv, uint32_t nranks, uint32_t round)
{
    uint64_t row = 0;
    for (uint32_t r = 0; r < nranks; r++) {
        require(recv->src_begin[r] == row, "rows of a rank begin where those before it end");
        for (uint64_t t = 0; t < tokens_of(r, round); t++, row++) {
            const float *x = (const float *)(const void *)((const char *)recv->x + row * recv->x_stride);
            require(recv->src_token[row] == (int32_t)t, "rows are in the order of their tokens");
            for (uint32_t h = 0; h < HIDDEN; h++) require(x[h] == value_of(r, round, t, h), "a row is its token's");
            for (uint32_t k = 0; k < TOPK; k++) {
                int64_t local = expert_of(r, t, k) - recv->first_expert;
                int here = expert_of(r, t, k) >= 0 && local >= 0 && local < recv->local_experts;
                require(((const int64_t *)recv->topk_idx)[row * TOPK + k] == (here ? local : -1), "so are its experts");
            }
        }
    }
    require(recv->rows == row, "there are no other rows");
}

static void compare_sums(const float (*x)[HIDDEN], const float (*out)[HIDDEN], uint32_t rank, uint64_t tokens)
{
    for (uint64_t t = 0; t < tokens; t++) {
        float factor = 0;
        for (uint32_t k = 0; k < TOPK; k++) factor += (float)(expert_of(rank, t, k) + 1);
        for (uint32_t h = 0; h < HIDDEN; h++) require(out[t][h] == factor * x[t][h], "out is what the experts gave");
    }
}

static void round_trip(xep_buffer_t *buffer, const xep_group_info_t *group, uint32_t round)
{
    static float x[TOKENS][HIDDEN], out[TOKENS][HIDDEN];
    static int64_t topk_idx[TOKENS][TOPK];
    xep_dispatch_args_t send = XEP_DISPATCH_ARGS_INIT;
    xep_combine_args_t back = XEP_COMBINE_ARGS_INIT;
    xep_handle_t *handle;
    send.tokens = tokens_of(group->rank, round), send.x = x, send.topk_idx = topk_idx;
    for (uint64_t t = 0; t < send.tokens; t++) {
        for (uint32_t h = 0; h < HIDDEN; h++) x[t][h] = value_of(group->rank, round, t, h);
        for (uint32_t k = 0; k < TOPK; k++) topk_idx[t][k] = expert_of(group->rank, t, k);
    }
    check(xep_dispatch(buffer, &send, &handle, NULL), "xep_dispatch");
    const xep_recv_t *recv;
    check(xep_handle_recv(handle, &recv), "xep_handle_recv");
    compare_rows(recv, group->nranks, round);
    run_experts(handle, recv);
    memset(out, 0xff, sizeof out);
    back.out = out;
    check(xep_combine(handle, &back, NULL), "xep_combine");
    compare_sums((const float(*)[HIDDEN])x, (const float(*)[HIDDEN])out, group->rank, send.tokens);
    topk_idx[2][1] = EXPERTS;
    xep_handle_t *refused;
    require(xep_dispatch(buffer, &send, &refused, NULL) == XEP_ERR_INVALID, "a selection that is no expert is refused");
    xep_handle_release(handle);
}

int main(void)
{
    xep_buffer_params_t params = XEP_BUFFER_PARAMS_INIT;
    xep_buffer_info_t info = XEP_BUFFER_INFO_INIT;
    xep_group_info_t self = XEP_GROUP_INFO_INIT;
    xep_group_t *group;
    xep_buffer_t *buffer;
    check(xep_group_create(NULL, &group), "xep_group_create");
    check(xep_group_query(group, &self), "xep_group_query");
    params.mode = "flood", params.experts = EXPERTS, params.topk = TOPK, params.hidden = HIDDEN;
    params.tokens = TOKENS, params.dtype = params.combine_dtype = XEP_FP32;
    check(xep_buffer_create(group, &params, &buffer), "xep_buffer_create");
    check(xep_buffer_query(buffer, &info), "xep_buffer_query");
    require(strcmp(info.mode, "flood") == 0, "the buffer's mode is flood");
    for (uint32_t i = 0; i < ROUNDS; i++) round_trip(buffer, &self, i);
    xep_buffer_destroy(buffer);
    xep_group_destroy(group);
    if (self.rank == 0) printf("flood: ok on %u ranks, %u mapped\n", self.nranks, info.mapped_peers);
    return 0;
}
