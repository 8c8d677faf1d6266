/* SPDX-License-Identifier: BSD-3-Clause */

/* Combine: a launch for each phase. */
#include "cuda_ll.h"

enum {
    COPYING = 32,      /* warps */
    CHUNK = 1024,      /* of a row, that a warp pulls at once: of as many rows as a token has selections */
    SUMS_CHUNK = 2048, /* likewise, of as many as it has owners */
    PUSHING = 16,      /* of the warps of a block that pushes rows and sums those that come */
    PACK = 16,         /* bytes that a lane moves of a row that is pushed */
    WARP = 32
};

/* Of this rank alone: readers find it at the same offset in the heap as they reach it. */
static char *input_of(const cuda_ll_t *mode, const xep_op_t *op)
{
    return xep_kit_own_area(&mode->ll.kit, mode->layout.ll.common.input, op->slot);
}

/* ---- send ---- */

/* Whether rows are pushed to the sources of their tokens (cuda_ll_rows.cuh), the same on all ranks. */
static int is_pushed(const cuda_ll_t *mode, const xep_op_t *op)
{
    return mode->pushes && !ll_sums_at_owner(op);
}

/* Whether the receive phase makes the offer: one launch. */
static int is_in_one(const cuda_ll_t *mode, const xep_op_t *op)
{
    return op->waits && !ll_sums_at_owner(op) && (is_pushed(mode, op) || op->combine->x == NULL);
}

/* What ranks must agree on. */
static uint64_t second_offer(const xep_combine_args_t *args)
{
    return (uint64_t)args->quant << 32 | args->flags;
}

static xep_cuda_ll_offer_t offer_of(const cuda_ll_t *mode, const xep_op_t *op)
{
    const xep_combine_args_t *args = op->combine;
    const ll_slot_t *slot = ll_slot(&mode->ll, op->slot);
    const xep_shape_t *shape = mode->ll.kit.shape;
    return (xep_cuda_ll_offer_t){
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
}

/* One of the kernels that there are for each type, of which this is the first. */
static int kernel_of(const xep_op_t *op, cuda_ll_kernel_t bf16)
{
    return (int)bf16 + (op->combine->dtype == XEP_BF16 ? 0 : op->combine->dtype == XEP_FP16 ? 1 : 2);
}

/* Outputs that lie in the input already need one block, which only tells the readers. */
static xep_status_t launch_offer(cuda_ll_t *mode, const xep_op_t *op)
{
    xep_cuda_ll_offer_t offer = offer_of(mode, op);
    const uint32_t blocks = offer.x == NULL ? 1 : cuda_multiprocessors(&mode->ll.kit);
    return cuda_launch(&mode->cuda, op, CUDA_LL_OFFER, blocks, COPYING * WARP,
                       offer.x == NULL ? 0 : (offer.pairs + 1) * (uint32_t)sizeof(uint32_t), &offer);
}

static xep_status_t launch_push(cuda_ll_t *mode, const xep_op_t *op)
{
    xep_cuda_ll_push_t push = {
        .offer = offer_of(mode, op),
        .came = mode->slots[op->slot].came,
        .topk = ll_slot(&mode->ll, op->slot)->topk,
        .hidden = op->combine->hidden,
        .sums = mode->layout.sums,
    };
    if (push.offer.x == NULL) {
        push.offer.x = push.offer.input;
        push.offer.x_stride = push.offer.row_stride;
    }
    return cuda_launch(&mode->cuda, op, kernel_of(op, CUDA_LL_PUSH_BF16), cuda_multiprocessors(&mode->ll.kit),
                       COPYING * WARP, 0, &push);
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

/*
 * Of each owner its sum, in the heap, or a row of each selection: then where the user has this rank's outputs decides,
 * too, whether bulk copies can pull them. Returns what shared memory it takes.
 */
static uint32_t lay_sums(const cuda_ll_t *mode, const xep_op_t *op, uint32_t blocks, xep_cuda_ll_sums_t *sums)
{
    const uint32_t topk = sums->topk, nranks = sums->at.nranks, room = cuda_shared_bytes(&mode->cuda);
    if (sums->at_owner)
        return cuda_lay_sums(op->combine, blocks, nranks < topk ? nranks : topk, SUMS_CHUNK, CUDA_MOST_WARPS, room, 0,
                             &sums->sum);
    return cuda_lay_sums(op->combine, blocks, topk, CHUNK, CUDA_MOST_WARPS, room,
                         (uintptr_t)sums->own | sums->own_stride, &sums->sum);
}

/* Own outputs are read where the user has them: the send phase leaves them out of the copy. */
static xep_cuda_ll_sums_t sums_of(const cuda_ll_t *mode, const xep_op_t *op)
{
    const xep_combine_args_t *args = op->combine;
    const ll_slot_t *slot = ll_slot(&mode->ll, op->slot);
    const xep_heap_layout_t *at = &mode->layout.ll.common;
    xep_cuda_ll_sums_t sums = {
        .sum = {.tokens = (uint32_t)slot->tokens},
        .at = cuda_ll_heaps(mode, op),
        .topk = slot->topk,
        .kept = mode->slots[op->slot].kept,
        .input = at->input.first,
        .input_bytes = at->input.stride,
        .row_stride = at->combine_stride,
        .offers = (uint32_t)is_in_one(mode, op),
        .at_owner = (uint32_t)ll_sums_at_owner(op),
        .sums = mode->layout.sums,
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
    return sums;
}

static xep_status_t launch_sums(cuda_ll_t *mode, const xep_op_t *op)
{
    xep_cuda_ll_sums_t sums = sums_of(mode, op);
    const uint32_t blocks = cuda_multiprocessors(&mode->ll.kit), bytes = lay_sums(mode, op, blocks, &sums);
    return cuda_launch_after(&mode->cuda, op, kernel_of(op, CUDA_LL_SUM_BF16), blocks, sums.sum.warps * WARP, bytes,
                             &sums);
}

/* ---- rows that are pushed: the send phase, the receive phase, or both ---- */

/* No shared memory: warps have in registers what they move. */
static xep_status_t launch_rows(const cuda_ll_t *mode, const xep_op_t *op, int sends, int receives)
{
    xep_cuda_ll_rows_t rows = {
        .sums = sums_of(mode, op),
        .came = mode->slots[op->slot].came,
        .topk = ll_slot(&mode->ll, op->slot)->topk,
        .row_bytes = (uint32_t)xep_combine_row_bytes(op->combine),
        .sends = (uint32_t)sends,
        .receives = (uint32_t)receives,
        .pushing = !sends     ? 0
                   : receives ? PUSHING
                              : CUDA_MOST_WARPS,
        .inbox = mode->layout.inbox,
    };
    xep_cuda_sum_t *sum = &rows.sums.sum;
    const uint32_t blocks = cuda_multiprocessors(&mode->ll.kit);
    cuda_lay_sums(op->combine, blocks, rows.topk, CHUNK, CUDA_MOST_WARPS, cuda_shared_bytes(&mode->cuda), 0, sum);
    uintptr_t odd = rows.row_bytes | (uintptr_t)rows.sums.own | rows.sums.own_stride | (uintptr_t)sum->out;
    odd |= sum->out_stride | (uintptr_t)sum->bias[0] | sum->bias_stride[0];
    odd |= (uintptr_t)sum->bias[1] | sum->bias_stride[1];
    rows.odd = odd % PACK != 0;
    return cuda_launch_after(&mode->cuda, op, kernel_of(op, CUDA_LL_ROWS_BF16), blocks, CUDA_MOST_WARPS * WARP, 0,
                             &rows);
}

static xep_status_t receive_rows(cuda_ll_t *mode, const xep_op_t *op)
{
    return launch_rows(mode, op, is_in_one(mode, op), 1);
}

/* ---- the steps ---- */

static xep_status_t offer(void *opaque, xep_op_t *op)
{
    cuda_ll_t *mode = opaque;
    if (is_in_one(mode, op)) return XEP_OK;
    xep_status_t status = is_pushed(mode, op)    ? launch_rows(mode, op, 1, 0)
                          : ll_sums_at_owner(op) ? launch_push(mode, op)
                                                 : launch_offer(mode, op);
    return status == XEP_OK ? mode->cuda.device->ops->mark(mode->cuda.device, cuda_stream(op)) : status;
}

static xep_status_t sum(void *opaque, xep_op_t *op)
{
    return cuda_ll_receive_in_turn(opaque, op, is_pushed(opaque, op) ? receive_rows : launch_sums);
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
    xep_status_t status = ll_sums_at_owner(op) ? ll_check_sums(&mode->ll, op) : XEP_OK;
    if (status == XEP_OK) status = check_memory(mode, op);
    return status == XEP_OK ? cuda_ll_begin(mode, op) : status;
}
