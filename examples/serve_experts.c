/* SPDX-License-Identifier: BSD-3-Clause */
/* Experts on the last rank alone, whose program is one call; the other ranks have tokens, and two layers. */
#include <stdio.h>
#include <stdlib.h>
#include <xep/serve.h>

enum { T = 4, H = 64, K = 2, E = 8, LAYERS = 2, STEPS = 3 };
static float x[T][H], weights[T][K];
static int32_t topk[T][K];

static void check(xep_status_t status)
{
    if (status == XEP_OK) return;
    fprintf(stderr, "%s: %s\n", xep_status_name(status), xep_last_error());
    exit(1);
}

static float factor(uint32_t expert, uint64_t layer) /* by which an expert of a layer multiplies */
{
    return (float)(expert + 1) / (float)(layer + 1);
}

static xep_status_t experts(void *arg, xep_serve_call_t *call) /* a layer; combine applies the weights */
{
    const xep_recv_t *recv = call->recv;
    (void)arg;
    for (uint32_t e = 0; e < recv->local_experts; e++)
        for (uint64_t row = recv->expert_begin[e]; row < recv->expert_begin[e] + recv->expert_count[e]; row++)
            for (int h = 0; h < H; h++)
                ((float *)((char *)call->out + row * call->out_stride))[h] =
                    ((float *)((char *)recv->x + row * recv->x_stride))[h] * factor(recv->experts[e], call->dispatch);
    return XEP_OK;
}

static void layer(xep_buffer_t *buffer)
{
    xep_handle_t *handle;
    xep_dispatch_args_t send = XEP_DISPATCH_ARGS_INIT;
    xep_combine_args_t back = XEP_COMBINE_ARGS_INIT;
    send.tokens = T, send.x = x, send.topk_weights = weights[0];
    send.topk_idx = topk, send.topk_idx_dtype = XEP_INT32;
    check(xep_dispatch(buffer, &send, &handle, NULL));
    back.out = x; /* this rank has no experts, and so no rows */
    check(xep_combine(handle, &back, NULL));
    xep_handle_release(handle);
}

static float alone(int t, float value) /* one process that has every expert */
{
    for (uint64_t l = 0; l < LAYERS; l++) {
        float sum = 0;
        for (int k = 0; k < K; k++) sum += weights[t][k] * (value * factor((uint32_t)topk[t][k], l));
        value = sum;
    }
    return value;
}

static void work(xep_buffer_t *buffer)
{
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < T * H; i++) (&x[0][0])[i] = (float)(i + step + 1);
        for (int l = 0; l < LAYERS; l++) layer(buffer);
        for (int i = 0; i < T * H; i++)
            if ((&x[0][0])[i] != alone(i / H, (float)(i + step + 1))) exit(fprintf(stderr, "the layers are wrong\n"));
        check(xep_step_end(&buffer, 1, step + 1 < STEPS ? 0 : XEP_STEP_LAST));
    }
    printf("step %d, token 1: from %d to %g\n", STEPS, H + STEPS, (double)x[1][0]);
}

int main(void)
{
    uint32_t owners[E];
    xep_group_t *group;
    xep_buffer_t *buffer;
    xep_group_info_t ranks = XEP_GROUP_INFO_INIT;
    xep_serve_args_t serve = XEP_SERVE_ARGS_INIT;
    xep_buffer_params_t shape = XEP_BUFFER_PARAMS_INIT;
    for (int t = 0; t < T; t++)
        for (int k = 0; k < K; k++) topk[t][k] = (t + 3 * k) % E, weights[t][k] = 0.5f;

    check(xep_group_create(NULL, &group));
    check(xep_group_query(group, &ranks));
    if (ranks.nranks == 1) {
        puts("start two ranks or more: xep_run -n 4 ./serve_experts");
        xep_group_destroy(group);
        return 1;
    }
    for (int e = 0; e < E; e++) owners[e] = ranks.nranks - 1;
    shape.mode = "ll", shape.experts = E, shape.topk = K, shape.hidden = H, shape.owners = owners;
    shape.tokens = T, shape.dtype = shape.combine_dtype = XEP_FP32, shape.flags = XEP_BUFFER_SERVED;
    check(xep_buffer_create(group, &shape, &buffer));
    if (ranks.rank + 1 < ranks.nranks) {
        work(buffer);
    } else {
        serve.buffers = &buffer, serve.count = 1, serve.fn = experts;
        check(xep_serve(&serve)); /* until the others have ended their last step */
    }
    xep_buffer_destroy(buffer);
    xep_group_destroy(group);
    return 0;
}
