/* SPDX-License-Identifier: BSD-3-Clause */

/** A user of the mode solo: dispatches on a group of one, combines, compares every element. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xep/xep.h>

enum { TOKENS = 9, HIDDEN = 37, TOPK = 3, EXPERTS = 5 };

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

/* token 4 goes nowhere */
static int64_t expert_of(uint64_t token, uint32_t k)
{
    return token == 4 || (token + k) % 4 == 3 ? -1 : (int64_t)((token * 2 + k) % EXPERTS);
}

static void compare_rows(const xep_recv_t *recv)
{
    require(recv->rows == TOKENS - 1, "every token with a selection is one row");
    require(recv->src_begin[0] == 0 && recv->src_begin[1] == recv->rows, "all rows are of rank 0");
    for (uint64_t row = 0; row < recv->rows; row++) {
        uint64_t token = row < 4 ? row : row + 1;
        const float *x = (const float *)(const void *)((const char *)recv->x + row * recv->x_stride);
        require(recv->src_token[row] == (int32_t)token, "rows are in the order of their tokens");
        for (uint32_t h = 0; h < HIDDEN; h++) require(x[h] == (float)(100 * token + h), "a row is its token's");
        for (uint32_t k = 0; k < TOPK; k++)
            require(((const int64_t *)recv->topk_idx)[row * TOPK + k] == expert_of(token, k), "selections came along");
    }
}

/* twice each row, written where the combine reads it */
static void run_experts(xep_handle_t *handle, const xep_recv_t *recv)
{
    size_t stride;
    char *y = xep_handle_combine_input(handle, &stride);
    require(y != NULL, "there is a combine input");
    for (uint64_t row = 0; row < recv->rows; row++)
        for (uint32_t h = 0; h < HIDDEN; h++)
            ((float *)(void *)(y + row * stride))[h] =
                2 * ((const float *)(const void *)((const char *)recv->x + row * recv->x_stride))[h];
}

static void round_trip(xep_buffer_t *buffer)
{
    static float x[TOKENS][HIDDEN], out[TOKENS][HIDDEN];
    static int64_t topk_idx[TOKENS][TOPK];
    xep_dispatch_args_t send = XEP_DISPATCH_ARGS_INIT;
    xep_combine_args_t back = XEP_COMBINE_ARGS_INIT;
    xep_handle_t *handle;
    for (uint64_t t = 0; t < TOKENS; t++) {
        for (uint32_t h = 0; h < HIDDEN; h++) x[t][h] = (float)(100 * t + h);
        for (uint32_t k = 0; k < TOPK; k++) topk_idx[t][k] = expert_of(t, k);
    }
    send.tokens = TOKENS, send.x = x, send.topk_idx = topk_idx;
    check(xep_dispatch(buffer, &send, &handle, NULL), "xep_dispatch");
    compare_rows(xep_handle_recv(handle));
    run_experts(handle, xep_handle_recv(handle));
    memset(out, 0xff, sizeof out);
    back.out = out, back.bias[0] = x;
    check(xep_combine(handle, &back, NULL), "xep_combine");
    for (uint64_t t = 0; t < TOKENS; t++)
        for (uint32_t h = 0; h < HIDDEN; h++) require(out[t][h] == (t == 4 ? 1 : 3) * x[t][h], "out is bias and twice the row");
    topk_idx[7][1] = EXPERTS;
    require(xep_dispatch(buffer, &send, &handle, NULL) != XEP_OK, "a selection that is no expert is refused");
    xep_handle_release(handle);
}

int main(void)
{
    xep_buffer_params_t params = XEP_BUFFER_PARAMS_INIT;
    xep_buffer_info_t info = XEP_BUFFER_INFO_INIT;
    xep_group_t *group;
    xep_buffer_t *buffer;
    check(xep_group_create(NULL, &group), "xep_group_create");
    params.mode = "solo", params.experts = EXPERTS, params.topk = TOPK, params.hidden = HIDDEN, params.tokens = TOKENS;
    params.dtype = params.combine_dtype = XEP_FP32;
    check(xep_buffer_create(group, &params, &buffer), "xep_buffer_create");
    check(xep_buffer_query(buffer, &info), "xep_buffer_query");
    require(strcmp(info.mode, "solo") == 0, "the buffer's mode is solo");
    for (int i = 0; i < 5; i++) round_trip(buffer);
    xep_buffer_destroy(buffer);
    xep_group_destroy(group);
    puts("solo: ok");
    return 0;
}
