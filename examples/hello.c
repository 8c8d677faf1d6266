/* SPDX-License-Identifier: BSD-3-Clause */
/* The smallest program: each token goes to one expert; expert e multiplies what it gets by e + 1. */
#include <stdio.h>
#include <xep/xep.h>

int main(void)
{
    float x[4][16] = {{1}, {1}, {1}, {1}}, out[4][16]; /* four tokens of 16 elements */
    int64_t expert[4] = {0, 2, 4, 6};                  /* one of eight for each, as topk is 1 */
    xep_buffer_params_t shape = XEP_BUFFER_PARAMS_INIT;
    xep_dispatch_args_t send = XEP_DISPATCH_ARGS_INIT;
    xep_combine_args_t back = XEP_COMBINE_ARGS_INIT;
    xep_group_t *group;
    xep_buffer_t *buffer;
    xep_handle_t *handle;
    shape.experts = 8, shape.topk = 1, shape.hidden = 16, shape.tokens = 4;
    shape.dtype = shape.combine_dtype = XEP_FP32;
    send.tokens = 4, send.x = x, send.topk_idx = expert;
    back.out = out;
    if (xep_group_create(NULL, &group) || xep_buffer_create(group, &shape, &buffer) ||
        xep_dispatch(buffer, &send, &handle, NULL))
        return puts(xep_last_error()), 1;
    const xep_recv_t *recv; /* rows for the experts of this rank, in the buffer's memory */
    void *y;
    if (xep_handle_recv(handle, &recv) || xep_handle_combine_input(handle, &y, NULL)) return puts(xep_last_error()), 1;
    const float *in = recv->x;
    for (uint64_t i = 0; i < recv->rows * 16; i++)
        ((float *)y)[i] = in[i] * (float)(recv->first_expert + ((int64_t *)recv->topk_idx)[i / 16] + 1);
    if (xep_combine(handle, &back, NULL)) return puts(xep_last_error()), 1;
    printf("%d rows for my experts; my token 3 came back as %g\n", (int)recv->rows, (double)out[3][0]);
    xep_handle_release(handle);
    xep_buffer_destroy(buffer);
    xep_group_destroy(group);
    return 0;
}
