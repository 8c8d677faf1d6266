/* SPDX-License-Identifier: BSD-3-Clause */
/* Attention on half of the ranks, experts on the others, and two batches in flight: bit for bit as in one process. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xep/xep.h>

enum { T = 16, H = 256, K = 2, E = 7, LAYERS = 3, BATCHES = 2 };
static float x[BATCHES][T][H], out[BATCHES][T][H], alone[BATCHES][T][H], weights[T][K];
static int64_t topk[T][K];

static void check(xep_status_t status)
{
    if (status == XEP_OK) return;
    fprintf(stderr, "%s: %s\n", xep_status_name(status), xep_last_error());
    exit(1);
}

static xep_request_t *dispatch(xep_buffer_t *buffer, uint64_t tokens, int batch, xep_handle_t **handle_p)
{
    xep_dispatch_args_t send = XEP_DISPATCH_ARGS_INIT;
    xep_request_t *arrives;
    send.tokens = tokens, send.x = x[batch], send.topk_idx = topk, send.topk_weights = weights[0];
    check(xep_dispatch(buffer, &send, handle_p, &arrives));
    return arrives;
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
                    ((float *)((char *)recv->x + row * recv->x_stride))[h] * (float)(recv->experts[e] + 1);
}

static void run_alone(void) /* the same by one process; mode ll adds by k, too */
{
    for (int i = 0; i < LAYERS * BATCHES * T * H; i++) {
        float *token = &alone[0][0][0] + i % (BATCHES * T * H), sum = 0;
        const int t = i / H % T;
        for (int k = 0; k < K; k++) sum += weights[t][k] * (*token * (float)(topk[t][k] + 1));
        *token = sum / 4;
    }
}

int main(void)
{
    xep_group_t *group;
    xep_buffer_t *buffer;
    xep_handle_t *handle[BATCHES];
    xep_request_t *arrives[BATCHES];
    xep_group_info_t info = XEP_GROUP_INFO_INIT;
    xep_buffer_params_t shape = XEP_BUFFER_PARAMS_INIT;
    uint32_t owners[E];
    check(xep_group_create(NULL, &group));
    check(xep_group_query(group, &info));
    const uint32_t first = info.nranks / 2; /* of the ranks with experts; a job of one rank has both */
    const uint64_t tokens = info.rank < first || first == 0 ? T : 0;
    for (uint32_t e = 0; e < E; e++) owners[e] = first + e % (info.nranks - first);
    for (int t = 0; t < T; t++)
        for (int k = 0; k < K; k++) topk[t][k] = (t + 3 * k) % E, weights[t][k] = 0.5f;
    for (int i = 0; i < BATCHES * T * H; i++) (&x[0][0][0])[i] = (float)(i % 1000 + 1);
    memcpy(alone, x, sizeof x);
    run_alone();

    shape.mode = "ll", shape.experts = E, shape.owners = owners, shape.topk = K, shape.hidden = H;
    shape.tokens = tokens, shape.slots = BATCHES, shape.dtype = shape.combine_dtype = XEP_FP32;
    check(xep_buffer_create(group, &shape, &buffer));
    for (int b = 0; b < BATCHES; b++) arrives[b] = dispatch(buffer, tokens, b, &handle[b]);
    for (int i = 0; i < LAYERS * BATCHES; i++) { /* the same calls on all ranks, in the same order */
        int b = i % BATCHES;
        xep_combine_args_t back = XEP_COMBINE_ARGS_INIT;
        back.out = out[b];
        check(xep_request_wait(arrives[b]));
        xep_request_free(arrives[b]);
        experts(handle[b]);
        check(xep_combine(handle[b], &back, NULL));
        xep_handle_release(handle[b]);
        for (int j = 0; j < T * H; j++) (&x[b][0][0])[j] = (&out[b][0][0])[j] / 4; /* attention would be here */
        if (i / BATCHES + 1 < LAYERS) arrives[b] = dispatch(buffer, tokens, b, &handle[b]);
    }
    for (int b = 0; b < BATCHES && tokens != 0; b++)
        printf("batch %d, token 1: from %d to %g, %s\n", b, (b * T + 1) * H % 1000 + 1, (double)x[b][1][0],
               memcmp(x[b], alone[b], sizeof x[b]) == 0 ? "as in one process" : "NOT as in one process");
    xep_buffer_destroy(buffer);
    xep_group_destroy(group);
    return 0;
}
