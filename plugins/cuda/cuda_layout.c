/* SPDX-License-Identifier: BSD-3-Clause */

/* The layout of a dispatch, counted on the device by one kernel that every mode has. */
#include "cuda_layout.h"

#include <rows.h>

#include "cuda_mode.h"

static xep_cuda_layout_t fill(const xep_layout_args_t *args, const xep_layout_t *out)
{
    return (xep_cuda_layout_t){
        .topk_idx = args->topk_idx,
        .topk_idx_stride = args->topk_idx_stride,
        .tokens = args->tokens,
        .wide = args->topk_idx_dtype == XEP_INT64,
        .topk = args->topk,
        .experts = args->experts,
        .nranks = args->nranks,
        .nodes = 1 + (args->nranks - 1) / args->ranks_per_node,
        .ranks_per_node = args->ranks_per_node,
        .tokens_per_rank = out->tokens_per_rank,
        .tokens_per_node = out->tokens_per_node,
        .tokens_per_expert = out->tokens_per_expert,
        .token_in_rank = out->token_in_rank,
    };
}

/* Without tokens topk_idx is not read and token_in_rank not written: the addresses may be anything. */
static xep_status_t check_memory(const cuda_mode_t *cuda, const xep_layout_args_t *args, const xep_layout_t *out)
{
    const cuda_array_t arrays[] = {{"topk_idx", args->tokens == 0 ? NULL : args->topk_idx},
                                   {"tokens_per_rank", out->tokens_per_rank},
                                   {"tokens_per_node", out->tokens_per_node},
                                   {"tokens_per_expert", out->tokens_per_expert},
                                   {"token_in_rank", args->tokens == 0 ? NULL : out->token_in_rank}};
    return cuda_check_arrays(cuda, arrays, sizeof arrays / sizeof arrays[0]);
}

/* No operation of the buffer: it is ordered by its stream alone. */
xep_status_t cuda_mode_layout(void *mode, const xep_layout_args_t *args, const xep_layout_t *out)
{
    const xep_kit_t *kit = mode;
    const cuda_mode_t *cuda = cuda_mode_of(mode);
    const xep_device_ops_t *ops = cuda->device->ops;
    xep_cuda_layout_t layout = fill(args, out);
    const xep_launch_t launch = {cuda->kernels[cuda_mode_traits.layout],
                                 XEP_CUDA_LAYOUT_BLOCKS,
                                 XEP_CUDA_LAYOUT_THREADS,
                                 (uint32_t)xep_cuda_layout_bytes(&layout),
                                 0,
                                 args->stream,
                                 &layout};
    xep_status_t status = check_memory(cuda, args, out);
    if (status != XEP_OK) return status;
    /* a block counts in shared memory and has nothing else to count in */
    if (xep_cuda_layout_bytes(&layout) > cuda_shared_bytes(cuda))
        return kit->env
            ->fail(kit->env, NULL, XEP_ERR_UNSUPPORTED,
                   "experts and ranks are too many for a layout in device memory: %u, %u (so that %llu bytes "
                   "are at most %u)",
                   args->experts, args->nranks, (unsigned long long)xep_cuda_layout_bytes(&layout),
                   cuda_shared_bytes(cuda));
    status = ops->check_stream(cuda->device, args->stream);
    return status == XEP_OK ? ops->launch(cuda->device, &launch) : status;
}
