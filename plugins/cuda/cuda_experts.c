/* SPDX-License-Identifier: BSD-3-Clause */

/* Rows by expert: what was received, in memory of the caller's. No operations of the buffer: a stream orders them. */
#include <rows.h>

#include "cuda_experts.h"
#include "cuda_normal.h"

enum {
    WARP = 32,
    MANY_TOKENS = 1024 /* so many that they are expanded sooner where the dispatch is in two parts */
};

static xep_status_t launch(const cuda_mode_t *cuda, int kernel, uint32_t blocks, uint32_t threads, uint64_t bytes,
                           int after, void *stream, void *args)
{
    const xep_launch_t launch = {cuda->kernels[kernel], blocks, threads, (uint32_t)bytes,
                                 (uint32_t)after,       stream, args};
    return cuda->device->ops->launch(cuda->device, &launch);
}

/* ---- expand ---- */

static xep_cuda_expand_t expand_of(const xep_recv_t *recv, const xep_expand_args_t *args)
{
    return (xep_cuda_expand_t){
        .topk_idx = recv->topk_idx,
        .wide = recv->topk_idx_dtype == XEP_INT64,
        .topk = recv->topk,
        .experts = recv->local_experts,
        .alignment = args->expert_alignment,
        .rows = recv->capacity,
        .capacity = args->capacity,
        .slots = args->slots,
        .begin = args->expert_begin,
        .count = args->expert_count,
        .x = recv->x,
        .x_stride = recv->x_stride,
        .row_bytes = args->x == NULL ? 0 : recv->hidden * (uint64_t)xep_elem_bytes(recv->dtype),
        .to = args->x,
        .to_stride = args->x_stride,
        .weights = recv->topk_weights,
        .to_weights = args->topk_weights,
        .scales = recv->scales,
        .scales_token_stride = recv->scales_token_stride,
        .scales_stride = recv->scales_stride,
        .to_scales = args->scales,
        .to_scales_token_stride = args->scales_token_stride,
        .to_scales_stride = args->scales_stride,
        .nscales = recv->nscales,
        .zero = (args->flags & XEP_EXPAND_ZERO) != 0,
    };
}

/* As many warps count as have room for a number of each expert. */
static uint32_t count_warps(const cuda_mode_t *cuda, uint32_t experts)
{
    uint32_t warps = XEP_CUDA_SLOTS_WARPS;
    while (warps > 1 && xep_cuda_slots_bytes(experts, warps) > cuda_shared_bytes(cuda)) warps--;
    return warps;
}

static xep_status_t check_expand(const xep_kit_t *kit, const cuda_mode_t *cuda, const xep_expand_args_t *args)
{
    const uint32_t experts = kit->shape->local_experts;
    const int rows = args->capacity != 0;
    const cuda_array_t arrays[] = {{"slots", args->slots},
                                   {"expert_begin", args->expert_begin},
                                   {"expert_count", args->expert_count},
                                   {"x", rows ? args->x : NULL},
                                   {"topk_weights", rows ? args->topk_weights : NULL},
                                   {"scales", rows ? args->scales : NULL}};
    if (xep_cuda_slots_bytes(experts, 1) > cuda_shared_bytes(cuda))
        return kit->env->fail(kit->env, NULL, XEP_ERR_UNSUPPORTED,
                              "too many local experts to be told apart on this device: %u", experts);
    return cuda_check_arrays(cuda, arrays, sizeof arrays / sizeof arrays[0]);
}

uint32_t cuda_normal_part(cuda_normal_t *mode, const xep_op_t *op)
{
    const int parted = (op->dispatch->flags & XEP_DISPATCH_WILL_EXPAND) != 0 && op->dispatch->tokens >= MANY_TOKENS &&
                       mode->cuda.device->gone == NULL;
    mode->parted.x = parted ? xep_kit_own_area(&mode->normal.kit, mode->normal.layout.common.x, op->slot) : NULL;
    if (!parted) return 0;
    mode->parted.slot = &mode->slots[op->slot];
    mode->parted.stream = cuda_stream(op);
    mode->parted.captured = mode->cuda.device->ops->is_captured(mode->cuda.device, cuda_stream(op));
    return (uint32_t)op->dispatch->tokens / 2;
}

/*
 * Whether it comes right behind its dispatch, which is in two parts. Only once; and not where the host marks the rows
 * behind those received, as it does that behind both.
 */
static int follows_parts(cuda_normal_t *mode, const xep_recv_t *recv, const void *stream)
{
    const int follows = mode->parted.x != NULL && mode->parted.x == recv->x && mode->parted.stream == stream;
    mode->parted.x = NULL;
    return follows && recv->rows == recv->capacity &&
           mode->parted.captured == mode->cuda.device->ops->is_captured(mode->cuda.device, (void *)stream);
}

/*
 * Gives the second stream, behind the first part. 0: it cannot be used, and nothing has been enqueued, as where the
 * dispatch was captured into one graph and the expansion is being captured into another.
 */
static int is_branched(const cuda_normal_t *mode, void *stream, void **second_p)
{
    xep_device_t *device = mode->cuda.device;
    return device->ops->branch(device, second_p) == XEP_OK &&
           device->ops->is_captured(device, *second_p) == device->ops->is_captured(device, stream);
}

static xep_status_t launch_slots(const cuda_mode_t *cuda, void *stream, xep_cuda_expand_t *expand)
{
    const uint32_t warps = count_warps(cuda, expand->experts);
    return launch(cuda, CUDA_SLOTS, XEP_CUDA_SLOTS_BLOCKS, warps * WARP, xep_cuda_slots_bytes(expand->experts, warps),
                  0, stream, expand);
}

/*
 * On a second stream, behind the first part of the dispatch: slots, and its rows, on the multiprocessors that the
 * second part leaves. On the caller's, behind both, the rest. No kernel waits for another one's rows.
 */
static xep_status_t expand_parts(const cuda_normal_t *mode, const xep_recv_t *recv, void *stream, void *second,
                                 xep_cuda_expand_t *expand)
{
    const cuda_mode_t *cuda = &mode->cuda;
    const uint32_t all = cuda->device->multiprocessors, busy = cuda_multiprocessors(&mode->normal.kit);
    expand->nranks = mode->normal.kit.shape->nranks;
    expand->src_begin = mode->parted.slot->src_begin;
    expand->first = mode->parted.slot->first;
    expand->src_token = recv->src_token;
    expand->first_end = mode->parted.slot->first_end;
    expand->part = XEP_CUDA_FIRST;
    xep_status_t status = launch_slots(cuda, second, expand);
    if (status == XEP_OK)
        status =
            launch(cuda, CUDA_EXPAND, busy < all ? all - busy : all, XEP_CUDA_EXPAND_THREADS, 0, 1, second, expand);
    const xep_status_t joined = cuda->device->ops->join(cuda->device, stream); /* also where a launch has failed */
    expand->part = XEP_CUDA_REST;
    if (status == XEP_OK) status = joined;
    if (status != XEP_OK) return status;
    return launch(cuda, CUDA_EXPAND, all, XEP_CUDA_EXPAND_THREADS, 0, 0, stream, expand);
}

xep_status_t cuda_normal_expand(void *opaque, const xep_recv_t *recv, const xep_expand_args_t *args)
{
    cuda_normal_t *mode = opaque;
    const cuda_mode_t *cuda = &mode->cuda;
    xep_cuda_expand_t expand = expand_of(recv, args);
    void *second;
    xep_status_t status = check_expand(&mode->normal.kit, cuda, args);
    if (status == XEP_OK) status = cuda->device->ops->check_stream(cuda->device, args->stream);
    if (status != XEP_OK) return status;
    if (follows_parts(mode, recv, args->stream) && is_branched(mode, args->stream, &second))
        return expand_parts(mode, recv, args->stream, second, &expand);
    status = launch_slots(cuda, args->stream, &expand);
    if (status != XEP_OK) return status;
    return launch(cuda, CUDA_EXPAND, cuda->device->multiprocessors, XEP_CUDA_EXPAND_THREADS, 0, 1, args->stream,
                  &expand);
}

/* ---- reduce ---- */

static xep_status_t check_reduce(const cuda_mode_t *cuda, const xep_recv_t *recv, const xep_reduce_args_t *args)
{
    const int rows = recv->rows != 0;
    const cuda_array_t arrays[] = {{"slots", rows ? args->slots : NULL},
                                   {"x", rows ? args->x : NULL},
                                   {"out", rows ? args->out : NULL},
                                   {"topk_weights", rows ? args->topk_weights : NULL},
                                   {"out_weights", rows ? args->out_weights : NULL}};
    return cuda_check_arrays(cuda, arrays, sizeof arrays / sizeof arrays[0]);
}

xep_status_t cuda_normal_reduce(void *mode, const xep_recv_t *recv, const xep_reduce_args_t *args)
{
    const cuda_mode_t *cuda = cuda_mode_of(mode);
    xep_cuda_reduce_t reduce = {
        .slots = args->slots,
        .rows = recv->rows,
        .topk = recv->topk,
        .hidden = args->hidden,
        .x = args->x,
        .x_stride = args->x_stride,
        .out = args->out,
        .out_stride = args->out_stride,
        .weights = args->topk_weights,
        .out_weights = args->out_weights,
        .dtype = args->dtype,
        .wide = args->out_dtype == XEP_FP32,
    };
    xep_status_t status = check_reduce(cuda, recv, args);
    if (status == XEP_OK) status = cuda->device->ops->check_stream(cuda->device, args->stream);
    if (status != XEP_OK || recv->rows == 0) return status;
    return launch(cuda, CUDA_REDUCE, cuda->device->multiprocessors, XEP_CUDA_REDUCE_THREADS, 0, 0, args->stream,
                  &reduce);
}
