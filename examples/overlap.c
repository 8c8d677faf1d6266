/* SPDX-License-Identifier: BSD-3-Clause */
/* Two batches in flight in mode ll: one travels while the other is computed. */
#include <stdio.h>
#include <stdlib.h>
#include <xep/xep.h>

enum { T = 16, H = 512, K = 2, E = 8, BATCHES = 2 };
static float x[BATCHES][T][H], out[BATCHES][T][H], weights[T][K];
static int32_t topk[T][K];

static void check(xep_status_t status)
{
    if (status == XEP_OK) return;
    fprintf(stderr, "%s: %s\n", xep_status_name(status), xep_last_error());
    exit(1);
}

static void finish(xep_request_t *req) /* the receive phase */
{
    check(xep_request_wait(req));
    xep_request_free(req);
}

static void experts(xep_handle_t *handle) /* expert e multiplies by e + 1; combine applies the weights */
{
    const xep_recv_t *recv;
    void *y;
    size_t stride;
    check(xep_handle_recv(handle, &recv));
    check(xep_handle_combine_input(handle, &y, &stride));
    for (uint32_t e = 0; e < recv->local_experts; e++)
        for (uint64_t row = recv->expert_begin[e]; row < recv->expert_begin[e] + recv->expert_count[e]; row++)
            for (int h = 0; h < H; h++)
                ((float *)((char *)y + row * stride))[h] =
                    ((float *)((char *)recv->x + row * recv->x_stride))[h] * (float)(recv->first_expert + e + 1);
}

int main(void)
{
    for (int t = 0; t < T; t++)
        for (int k = 0; k < K; k++) topk[t][k] = (t + 3 * k) % E, weights[t][k] = 0.5f;
    for (int i = 0; i < BATCHES * T * H; i++) (&x[0][0][0])[i] = (float)(i % 1000 + 1);

    xep_group_t *group;
    xep_buffer_t *buffer;
    xep_handle_t *handle[BATCHES];
    xep_request_t *arrives[BATCHES], *returns[BATCHES];
    xep_buffer_params_t shape = XEP_BUFFER_PARAMS_INIT;
    shape.mode = "ll", shape.experts = E, shape.topk = K, shape.hidden = H, shape.tokens = T, shape.slots = BATCHES;
    shape.dtype = shape.combine_dtype = XEP_FP32;
    check(xep_group_create(NULL, &group));
    check(xep_buffer_create(group, &shape, &buffer));
    for (int b = 0; b < BATCHES; b++) { /* both are on their way */
        xep_dispatch_args_t send = XEP_DISPATCH_ARGS_INIT;
        send.tokens = T, send.x = x[b], send.topk_weights = weights[0];
        send.topk_idx = topk, send.topk_idx_dtype = XEP_INT32;
        check(xep_dispatch(buffer, &send, &handle[b], &arrives[b]));
    }
    for (int b = 0; b < BATCHES; b++) { /* while one is computed, the other travels */
        xep_combine_args_t back = XEP_COMBINE_ARGS_INIT;
        back.out = out[b];
        finish(arrives[b]);
        experts(handle[b]);
        check(xep_combine(handle[b], &back, &returns[b]));
    }
    for (int b = 0; b < BATCHES; b++) {
        finish(returns[b]);
        printf("batch %d, token 1: %g times its value\n", b, (double)(out[b][1][0] / x[b][1][0]));
        xep_handle_release(handle[b]);
    }
    xep_buffer_destroy(buffer);
    xep_group_destroy(group);
    return 0;
}
