/* SPDX-License-Identifier: BSD-3-Clause */

/* Combine: copies into the input, and one kernel that does the rest. Nothing is waited for here. */
#include "cuda_normal.h"

/* Of the measured choices, those that fill the links with the fewest multiprocessors (contrib/check-cuda.sh). */
enum {
    PULLING = 24, /* warps, and how much each pulls of a token at once */
    CHUNK = 2048,
    PLAIN = 32,     /* warps that pull what no bulk copy can move */
    MOST_ROWS = 32, /* of a token, that a warp pulls at once: a lane each */
    OF_STAGE = 12,  /* bytes of a barrier and a number */
    WARP = 32
};

/* ---- rows and weights into the slot ---- */

/*
 * Step 1 of the owner. NULL says that rows are in the input already (zero copy), or that there are no weights. The
 * copies are on the caller's stream, so the kernel that tells readers comes behind them.
 */
static xep_status_t enqueue_input(const cuda_normal_t *mode, const xep_op_t *op)
{
    const xep_combine_args_t *args = op->combine;
    const normal_t *normal = &mode->normal;
    const xep_device_ops_t *ops = mode->device->ops;
    const size_t weights = normal_slot(normal, op->slot)->routing->topk * sizeof(float);
    xep_status_t status = XEP_OK;
    if (args->x != NULL)
        status = ops->copy(mode->device, xep_kit_own_area(&normal->kit, normal->layout.common.input, op->slot),
                           normal->layout.common.combine_stride, args->x, args->x_stride, xep_combine_row_bytes(args),
                           op->recv->rows, args->stream);
    if (status == XEP_OK && args->topk_weights != NULL)
        status =
            ops->copy(mode->device, xep_kit_own_area(&normal->kit, normal->layout.input_weights, op->slot), weights,
                      args->topk_weights, args->topk_weights_stride, weights, op->recv->rows, args->stream);
    return status;
}

/* ---- the kernel ---- */

/*
 * What readers compare: as the host's offer, packed into two words. A rank that got no rows cannot know whether they
 * would have had weights, and agrees with both.
 */
static void fill_offer(const xep_op_t *op, uint64_t offer[2])
{
    const xep_combine_args_t *args = op->combine;
    const int weighted = args->topk_weights != NULL || args->out_weights != NULL;
    offer[0] = (uint64_t)args->hidden << 32 | args->dtype;
    offer[1] = weighted ? 1 : op->recv->rows != 0 ? 0 : UINT64_MAX;
}

/* Bulk copies take multiples of 16 bytes at multiples of 16. */
static int is_bulk(const xep_combine_args_t *args)
{
    uintptr_t odd = (uintptr_t)args->out | args->out_stride;
    for (int b = 0; b < 2; b++)
        if (args->bias[b] != NULL) odd |= (uintptr_t)args->bias[b] | args->bias_stride[b];
    return odd % 16 == 0;
}

/* How tokens are pulled: the chunk of a row, and the warps that fit beside one another. Returns the warps. */
static uint32_t choose_pulls(const cuda_normal_t *mode, const xep_op_t *op, xep_cuda_combine_t *sum)
{
    const uint32_t bytes = sum->hidden * (uint32_t)xep_elem_bytes(op->combine->dtype) & ~15u;
    uint32_t warps = PULLING;
    sum->rows = sum->max_dests + (sum->bias[0] != NULL) + (sum->bias[1] != NULL);
    sum->chunk = bytes < CHUNK ? bytes : CHUNK;
    sum->stages = is_bulk(op->combine) && sum->chunk != 0 && sum->rows <= MOST_ROWS;
    if (!sum->stages) return PLAIN;
    while (warps > 1 && warps * (sum->rows * sum->chunk + OF_STAGE) > cuda_shared_bytes(mode)) warps--;
    return warps;
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
        .peer = mode->peer,
        .rank = shape->rank,
        .nranks = shape->nranks,
        .tokens = (uint32_t)routing->tokens,
        .hidden = args->hidden,
        .max_dests = normal->layout.max_dests,
        .epoch = op->epoch,
        .row_stride = normal->layout.common.combine_stride,
        .dest = mode->routings[normal_routing_index(normal, routing)].dest,
        .there = mode->slots[op->slot].there,
        .bias = {args->bias[0], args->bias[1]},
        .bias_stride = {args->bias_stride[0], args->bias_stride[1]},
        .out = args->out,
        .out_stride = args->out_stride,
        .topk = routing->topk,
        .out_weights = (char *)args->out_weights,
        .out_weights_stride = args->out_weights_stride,
        .ready = normal->layout.common.combine_mail + offsetof(xep_combine_mail_t, ready),
        .said = normal->layout.common.combine_mail + offsetof(xep_combine_mail_t, offer),
        .read = normal->layout.common.combine_mail + offsetof(xep_combine_mail_t, read),
        .word_stride = sizeof(xep_combine_mail_t),
        .blocks_done = mode->blocks_done,
        .deadline = cuda_deadline(mode, op, CUDA_OFFERS),
        .at_the_end = cuda_deadline(mode, op, CUDA_READERS),
        .differs = &mode->late[CUDA_DIFFERS],
    };
    fill_offer(op, sum.offer);
    const uint32_t warps = choose_pulls(mode, op, &sum);
    return cuda_launch(mode, op, kernel, 0, warps * WARP, warps * sum.stages * (sum.rows * sum.chunk + OF_STAGE), &sum);
}

/* ---- steps ---- */

/* The mark is last, so that the buffer's next operation comes behind all of this one, on whatever stream it is. */
static xep_status_t enqueue(void *opaque, xep_op_t *op)
{
    cuda_normal_t *mode = opaque;
    const xep_device_ops_t *ops = mode->device->ops;
    xep_status_t status = enqueue_input(mode, op);
    if (status == XEP_OK) status = launch_sums(mode, op);
    return status == XEP_OK ? ops->mark(mode->device, cuda_stream(op)) : status;
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
    const struct {
        const char *name;
        const void *address;
    } arrays[] = {{"x", rows ? args->x : NULL},
                  {"topk_weights", rows ? args->topk_weights : NULL},
                  {"bias", tokens ? args->bias[0] : NULL},
                  {"bias", tokens ? args->bias[1] : NULL},
                  {"out", tokens ? args->out : NULL},
                  {"out_weights", tokens ? args->out_weights : NULL}};
    xep_status_t status = XEP_OK;
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0] && status == XEP_OK; i++)
        status = mode->device->ops->check(mode->device, arrays[i].name, arrays[i].address);
    return status;
}

/* after_mark() is the last to refuse anything, so that a call that is refused leaves nothing on the stream. */
xep_status_t cuda_normal_combine(void *opaque, xep_op_t *op)
{
    cuda_normal_t *mode = opaque;
    xep_status_t status = normal_check_combine(&mode->normal, op);
    if (status == XEP_OK) status = check_memory(mode, op);
    if (status == XEP_OK) status = mode->device->ops->after_mark(mode->device, cuda_stream(op));
    return status == XEP_OK ? xep_steps_begin(mode, op) : status;
}
