/* SPDX-License-Identifier: BSD-3-Clause */

/* Combine: copies into the input, and one kernel that does the rest. Nothing is waited for here. */
#include "cuda_normal.h"

enum {
    MANY_BYTES = 16 << 20, /* of rows that are copied: of fewer, the calls for parts would take longer than they save */
    MOST_PULLING = CUDA_MOST_WARPS - 1, /* and one that tells how far copies are */
    WARP = 32
};

/* ---- rows and weights into the slot ---- */

/*
 * Whether the input is copied beside the kernel: if the host knows whose rows are where, and what no capture has to
 * keep together. Rows for this rank itself are pulled from where they are, so bulk copies must be able to.
 */
static int is_in_parts(const cuda_normal_t *mode, const xep_op_t *op)
{
    const xep_combine_args_t *args = op->combine;
    /* where counts stay on the device, recv shows them there; where ranks may be out, no part is waited for */
    if (args->x == NULL || mode->cuda.device->gone != NULL || op->recv->src_begin == mode->slots[op->slot].src_begin)
        return 0;
    const uint64_t *begin = op->recv->src_begin;
    const uint32_t rank = mode->normal.kit.shape->rank;
    const uint64_t rows = op->recv->rows - (begin[rank + 1] - begin[rank]), bytes = xep_combine_row_bytes(args);
    return (bytes | args->x_stride | (uintptr_t)args->x) % 16 == 0 && rows * bytes >= MANY_BYTES &&
           !mode->cuda.device->ops->is_captured(mode->cuda.device, args->stream);
}

/* From part begin to part end of the rows of all other ranks. */
static xep_status_t copy_parts(const cuda_normal_t *mode, const xep_op_t *op, uint32_t begin, uint32_t end,
                               void *stream)
{
    const xep_combine_args_t *args = op->combine;
    const normal_t *normal = &mode->normal;
    const xep_shape_t *shape = normal->kit.shape;
    const size_t stride = normal->layout.common.combine_stride;
    char *input = xep_kit_own_area(&normal->kit, normal->layout.common.input, op->slot);
    xep_status_t status = XEP_OK;
    for (uint32_t i = 1; i < shape->nranks && status == XEP_OK; i++) {
        const uint64_t *source = &op->recv->src_begin[(shape->rank + i) % shape->nranks], rows = source[1] - source[0];
        const uint64_t first = source[0] + rows * begin / XEP_CUDA_PARTS,
                       last = source[0] + rows * end / XEP_CUDA_PARTS;
        status = mode->cuda.device->ops->copy(mode->cuda.device, input + first * stride, stride,
                                              (const char *)args->x + first * args->x_stride, args->x_stride,
                                              xep_combine_row_bytes(args), last - first, stream);
    }
    return status;
}

/* Each part is as long as all before it: it is copied at twice the speed at least at which those are pulled. */
static xep_status_t enqueue_parts(const cuda_normal_t *mode, const xep_op_t *op)
{
    const xep_device_ops_t *ops = mode->cuda.device->ops;
    void *beside;
    xep_status_t status = ops->branch(mode->cuda.device, op->combine->stream, &beside);
    for (uint32_t begin = 0, end = 1; begin < XEP_CUDA_PARTS && status == XEP_OK; begin = end, end *= 2) {
        status = copy_parts(mode, op, begin, end, beside);
        if (status == XEP_OK)
            status = ops->fill(mode->cuda.device, &mode->copied[end - 1], 1, sizeof *mode->copied, beside);
    }
    return status;
}

/*
 * Step 1 of the owner. NULL says that rows are in the input already (zero copy), or that there are no weights. The
 * copies are on the caller's stream, so the kernel that tells readers comes behind them.
 */
static xep_status_t enqueue_input(const cuda_normal_t *mode, const xep_op_t *op)
{
    const xep_combine_args_t *args = op->combine;
    const normal_t *normal = &mode->normal;
    const xep_device_ops_t *ops = mode->cuda.device->ops;
    const size_t weights = normal_slot(normal, op->slot)->routing->topk * sizeof(float);
    xep_status_t status = XEP_OK;
    if (is_in_parts(mode, op)) status = enqueue_parts(mode, op);
    else if (args->x != NULL)
        status = ops->copy(mode->cuda.device, xep_kit_own_area(&normal->kit, normal->layout.common.input, op->slot),
                           normal->layout.common.combine_stride, args->x, args->x_stride, xep_combine_row_bytes(args),
                           op->recv->rows, args->stream);
    if (status == XEP_OK && args->topk_weights != NULL)
        status =
            ops->copy(mode->cuda.device, xep_kit_own_area(&normal->kit, normal->layout.input_weights, op->slot),
                      weights, args->topk_weights, args->topk_weights_stride, weights, op->recv->rows, args->stream);
    return status;
}

/* ---- the kernel ---- */

/*
 * What readers compare: as the host's offer, packed into two words. A rank that got no rows cannot know whether they
 * would have had weights, and agrees with both.
 */
static void fill_offer(const cuda_normal_t *mode, const xep_op_t *op, uint64_t offer[2])
{
    const xep_combine_args_t *args = op->combine;
    const normal_routing_t *routing = normal_slot(&mode->normal, op->slot)->routing;
    const int weighted = args->topk_weights != NULL || args->out_weights != NULL;
    offer[0] = cuda_offer(op);
    offer[1] = weighted ? 1 : op->recv->rows != 0 ? 0 : UINT64_MAX;
    /* without tokens it was not told whether there were weights; what it sends back is read by those who gave some */
    if (weighted && routing->tokens == 0 && mode->routings[normal_routing_index(&mode->normal, routing)].counts_there)
        offer[1] = UINT64_MAX;
}

/*
 * The places of rows are those that the dispatch of this handle has found and left in its routing and slot on the
 * device: a combine needs no exchange of counts.
 */
static xep_status_t launch_sums(cuda_normal_t *mode, const xep_op_t *op)
{
    const xep_combine_args_t *args = op->combine;
    const normal_t *normal = &mode->normal;
    const xep_shape_t *shape = normal->kit.shape;
    const normal_routing_t *routing = normal_slot(normal, op->slot)->routing;
    const cuda_kernel_t kernel = args->dtype == XEP_BF16   ? CUDA_SUM_BF16
                                 : args->dtype == XEP_FP16 ? CUDA_SUM_FP16
                                                           : CUDA_SUM_FP32;
    xep_cuda_combine_t sum = {
        .life = cuda_life(&mode->cuda),
        .peer = mode->cuda.peer,
        .rank = shape->rank,
        .nranks = shape->nranks,
        .sum = {.tokens = (uint32_t)routing->tokens},
        .max_dests = normal->layout.max_dests,
        .now = mode->now,
        .row_stride = normal->layout.common.combine_stride,
        .dest = mode->routings[normal_routing_index(normal, routing)].dest,
        .there = mode->slots[op->slot].there,
        .verdict = mode->slots[op->slot].verdict,
        .rank_rows = mode->routings[normal_routing_index(normal, routing)].rank_rows,
        .topk = routing->topk,
        .out_weights = (char *)args->out_weights,
        .out_weights_stride = args->out_weights_stride,
        .ready = normal->layout.common.combine_line + offsetof(xep_combine_line_t, ready),
        .said = normal->layout.common.combine_line + offsetof(xep_combine_line_t, offer),
        .read = normal->layout.common.combine_line + offsetof(xep_combine_line_t, read),
        .word_stride = sizeof(xep_combine_line_t),
        .deadline = cuda_deadline(&mode->cuda, op, CUDA_OFFERS),
        .at_the_end = cuda_deadline(&mode->cuda, op, CUDA_READERS),
        .differs = &mode->cuda.late[CUDA_DIFFERS],
        .outs = cuda_outs(&mode->cuda, shape->nranks),
        .chosen = mode->routings[normal_routing_index(normal, routing)].chosen,
        .owner = mode->cuda.owner,
        .missing = args->missing,
        .missing_stride = args->missing_stride,
    };
    fill_offer(mode, op, sum.offer);
    if (is_in_parts(mode, op)) {
        sum.sum.together = 1;
        sum.input =
            (xep_cuda_input_t){args->x, args->x_stride,
                               xep_kit_own_area(&normal->kit, normal->layout.common.input, op->slot), mode->copied};
    }
    const uint32_t blocks = cuda_multiprocessors(&normal->kit);
    const uint32_t bytes = cuda_lay_sums(args, blocks, sum.max_dests, xep_cuda_sum_chunk(sum.max_dests), MOST_PULLING,
                                         cuda_shared_bytes(&mode->cuda), 0, &sum.sum);
    return cuda_launch(&mode->cuda, op, kernel, blocks, (sum.sum.warps + (sum.input.x != NULL)) * WARP, bytes, &sum);
}

/* ---- steps ---- */

/* The mark is last, so that the buffer's next operation comes behind all of this one, on whatever stream it is. */
static xep_status_t enqueue(void *opaque, xep_op_t *op)
{
    cuda_normal_t *mode = opaque;
    const xep_device_ops_t *ops = mode->cuda.device->ops;
    xep_status_t status = enqueue_input(mode, op);
    if (status == XEP_OK) status = launch_sums(mode, op);
    if (status == XEP_OK && is_in_parts(mode, op)) status = ops->join(mode->cuda.device, cuda_stream(op));
    return status == XEP_OK ? ops->mark(mode->cuda.device, cuda_stream(op)) : status;
}

const xep_step_t cuda_combine_steps[] = {
    {.name = "earlier operations", .run = cuda_check_earlier},
    {.name = "launches", .run = enqueue},
    {0},
};

/*
 * Arrays without elements may be anything, also NULL or an address of the host: only what a kernel will touch is looked
 * at.
 */
static xep_status_t check_memory(const cuda_normal_t *mode, const xep_op_t *op)
{
    const xep_combine_args_t *args = op->combine;
    const int tokens = normal_slot(&mode->normal, op->slot)->routing->tokens != 0, rows = op->recv->rows != 0;
    const cuda_array_t arrays[] = {{"x", rows ? args->x : NULL},
                                   {"topk_weights", rows ? args->topk_weights : NULL},
                                   {"bias", tokens ? args->bias[0] : NULL},
                                   {"bias", tokens ? args->bias[1] : NULL},
                                   {"missing", tokens ? args->missing : NULL},
                                   {"out", tokens ? args->out : NULL},
                                   {"out_weights", tokens ? args->out_weights : NULL}};
    return cuda_check_arrays(&mode->cuda, arrays, sizeof arrays / sizeof arrays[0]);
}

xep_status_t cuda_normal_combine(void *opaque, xep_op_t *op)
{
    cuda_normal_t *mode = opaque;
    xep_status_t status = check_memory(mode, op);
    if (status == XEP_OK) status = mode->cuda.device->ops->after_mark(mode->cuda.device, cuda_stream(op));
    return status == XEP_OK ? xep_steps_begin(mode, op) : status;
}
