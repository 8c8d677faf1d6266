/* SPDX-License-Identifier: BSD-3-Clause */
/* A whole layer: top-2 experts with weights; right in both modes. */
#include <stdio.h>
#include <stdlib.h>
#include <xep/xep.h>

enum { T = 64, H = 256, K = 2, E = 8 }; /* tokens, hidden, top-k, experts */
static float x[T][H], out[T][H], weights[T][K];
static int64_t topk[T][K];

static void check(xep_status_t status)
{
    if (status == XEP_OK) return;
    fprintf(stderr, "%s: %s\n", xep_status_name(status), xep_last_error());
    exit(1);
}

int main(void)
{
    for (int t = 0; t < T; t++) {
        for (int h = 0; h < H; h++) x[t][h] = (float)(t + h);
        for (int k = 0; k < K; k++) topk[t][k] = (t + 3 * k) % E, weights[t][k] = 0.5f;
    }
    xep_group_t *group;
    xep_buffer_t *buffer;
    xep_handle_t *handle;
    xep_buffer_params_t shape = XEP_BUFFER_PARAMS_INIT;
    shape.experts = E, shape.topk = K, shape.hidden = H, shape.tokens = T, shape.dtype = shape.combine_dtype = XEP_FP32;
    check(xep_group_create(NULL, &group)); /* PMIx, or a group of one */
    check(xep_buffer_create(group, &shape, &buffer));

    xep_dispatch_args_t send = XEP_DISPATCH_ARGS_INIT;
    send.tokens = T, send.x = x, send.topk_idx = topk, send.topk_weights = weights[0];
    check(xep_dispatch(buffer, &send, &handle, NULL));

    const xep_recv_t *recv; /* views into the buffer: nothing to free */
    void *y;                /* the peers will read the results from here */
    size_t stride;
    check(xep_handle_recv(handle, &recv));
    check(xep_handle_combine_input(handle, &y, &stride));
    for (uint64_t row = 0; row < recv->rows; row++) {
        float factor = 0;
        for (uint64_t i = row * recv->topk; i < (row + 1) * recv->topk; i++) {
            int64_t expert = ((int64_t *)recv->topk_idx)[i]; /* -1: not of this rank */
            if (expert >= 0) factor += recv->topk_weights[i] * (float)(recv->first_expert + expert + 1);
        }
        const float *in = (const float *)((char *)recv->x + row * recv->x_stride);
        for (int h = 0; h < H; h++) ((float *)((char *)y + row * stride))[h] = factor * in[h];
    }
    xep_combine_args_t back = XEP_COMBINE_ARGS_INIT;
    back.out = out;
    check(xep_combine(handle, &back, NULL));
    printf("token 1: %g times its value\n", (double)(out[1][0] / x[1][0]));

    xep_handle_release(handle);
    xep_buffer_destroy(buffer);
    xep_group_destroy(group);
    return 0;
}
