/* SPDX-License-Identifier: BSD-3-Clause */

/* Combine: a launch for each phase. */
#include "cuda_ll.h"

enum {
    COPYING = 32, /* warps */
    CHUNK = 1024, /* of a row, that a warp pulls at once: of as many rows as a token has selections */
    WARP = 32
};

/* Of this rank alone: readers find it at the same offset in the heap as they reach it. */
static char *input_of(const cuda_ll_t *mode, const xep_op_t *op)
{
    return xep_kit_own_area(&mode->ll.kit, mode->layout.ll.common.input, op->slot);
}

/* ---- send ---- */

/* Whether the receive phase makes the offer: one launch. */
static int is_in_one(const xep_op_t *op)
{
    return op->waits && op->combine->x == NULL;
}

/* What ranks must agree on. */
static uint64_t second_offer(const xep_combine_args_t *args)
{
    return (uint64_t)args->quant << 32 | args->flags;
}

/* Outputs that lie in the input already need one block, which only tells the readers. */
static xep_status_t offer(void *opaque, xep_op_t *op)
{
    cuda_ll_t *mode = opaque;
    const xep_combine_args_t *args = op->combine;
    if (is_in_one(op)) return XEP_OK;
    const ll_slot_t *slot = ll_slot(&mode->ll, op->slot);
    const xep_shape_t *shape = mode->ll.kit.shape;
    xep_cuda_ll_offer_t offer = {
        .at = cuda_ll_heaps(mode, op),
        .x = args->x,
        .x_stride = args->x_stride,
        .row_bytes = xep_combine_row_bytes(args),
        .row_stride = mode->layout.ll.common.combine_stride,
        .input = input_of(mode, op),
        .pairs = shape->local_experts * shape->nranks,
        .pair_begin = slot->pair_begin,
        .pair_count = slot->pair_count,
        .offer = {cuda_offer(op), second_offer(args)},
    };
    const uint32_t blocks = args->x == NULL ? 1 : cuda_multiprocessors(&mode->ll.kit);
    xep_status_t status = cuda_launch(&mode->cuda, op, CUDA_LL_OFFER, blocks, COPYING * WARP,
                                      args->x == NULL ? 0 : (offer.pairs + 1) * (uint32_t)sizeof(uint32_t), &offer);
    return status == XEP_OK ? mode->cuda.device->ops->mark(mode->cuda.device, cuda_stream(op)) : status;
}

/* ---- receive ---- */

/* Weights that were sent have been applied by the experts; where none were given, those that are kept are 1. */
static void find_weights(const cuda_ll_t *mode, const xep_op_t *op, xep_cuda_ll_sums_t *sums)
{
    const xep_combine_args_t *args = op->combine;
    const ll_slot_t *slot = ll_slot(&mode->ll, op->slot);
    sums->weights = (const char *)sums->kept.weights;
    sums->weights_stride = slot->topk * sizeof(float);
    if (slot->weights_sent) sums->weights = NULL;
    if (args->weights == NULL) return;
    sums->weights = (const char *)args->weights;
    sums->weights_stride = args->weights_stride;
}

/* Own outputs are read where the user has them: the send phase leaves them out of the copy. */
static xep_status_t launch_sums(cuda_ll_t *mode, const xep_op_t *op)
{
    const xep_combine_args_t *args = op->combine;
    const ll_slot_t *slot = ll_slot(&mode->ll, op->slot);
    const xep_heap_layout_t *at = &mode->layout.ll.common;
    const cuda_ll_kernel_t kernel = args->dtype == XEP_BF16   ? CUDA_LL_SUM_BF16
                                    : args->dtype == XEP_FP16 ? CUDA_LL_SUM_FP16
                                                              : CUDA_LL_SUM_FP32;
    xep_cuda_ll_sums_t sums = {
        .sum = {.tokens = (uint32_t)slot->tokens},
        .at = cuda_ll_heaps(mode, op),
        .topk = slot->topk,
        .kept = mode->slots[op->slot].kept,
        .input = at->input.first,
        .input_bytes = at->input.stride,
        .row_stride = at->combine_stride,
        .offers = (uint32_t)is_in_one(op),
        .offer = {cuda_offer(op), second_offer(args)},
        .missing = args->missing,
        .missing_stride = args->missing_stride,
        .own = args->x != NULL ? args->x : input_of(mode, op),
        .own_stride = args->x != NULL ? args->x_stride : at->combine_stride,
        .deadline = cuda_deadline(&mode->cuda, op, CUDA_LL_OFFERS),
        .at_the_end = cuda_deadline(&mode->cuda, op, CUDA_LL_READERS),
        .differs = &mode->cuda.late[CUDA_LL_DIFFERS],
    };
    find_weights(mode, op, &sums);
    const uint32_t blocks = cuda_multiprocessors(&mode->ll.kit);
    /* where the user has this rank's outputs decides, too, whether bulk copies can pull them */
    const uint32_t bytes =
        cuda_lay_sums(args, blocks, slot->topk, CHUNK, CUDA_MOST_WARPS, cuda_shared_bytes(&mode->cuda),
                      (uintptr_t)sums.own | sums.own_stride, &sums.sum);
    return cuda_launch_after(&mode->cuda, op, (int)kernel, blocks, sums.sum.warps * WARP, bytes, &sums);
}

static xep_status_t sum(void *opaque, xep_op_t *op)
{
    return cuda_ll_receive_in_turn(opaque, op, launch_sums);
}

const xep_step_t cuda_ll_combine_steps[] = {
    {.name = "earlier operations", .run = cuda_check_earlier},
    {.name = "its send phase", .run = offer},
    {.name = "receive phases of earlier operations", .does = "receive", .run = sum, .receives = 1},
    {0},
};

/* ---- begin ---- */

/* How many rows were received is known on the device alone, so x is looked at in any case. */
static xep_status_t check_memory(const cuda_ll_t *mode, const xep_op_t *op)
{
    const xep_combine_args_t *args = op->combine;
    const int tokens = ll_slot(&mode->ll, op->slot)->tokens != 0;
    const cuda_array_t arrays[] = {{"x", args->x},
                                   {"weights", tokens ? args->weights : NULL},
                                   {"bias", tokens ? args->bias[0] : NULL},
                                   {"bias", tokens ? args->bias[1] : NULL},
                                   {"missing", tokens ? args->missing : NULL},
                                   {"out", tokens ? args->out : NULL}};
    return cuda_check_arrays(&mode->cuda, arrays, sizeof arrays / sizeof arrays[0]);
}

xep_status_t cuda_ll_combine(void *opaque, xep_op_t *op)
{
    cuda_ll_t *mode = opaque;
    xep_status_t status = check_memory(mode, op);
    return status == XEP_OK ? cuda_ll_begin(mode, op) : status;
}
