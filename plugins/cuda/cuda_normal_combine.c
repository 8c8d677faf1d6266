/* SPDX-License-Identifier: BSD-3-Clause */

/* Combine: one kernel, which also brings outputs into the input. Nothing is waited for here. */
#include "cuda_experts.h"
#include "cuda_normal.h"

enum {
    WARP = 32,
    MOST_WARPS = XEP_CUDA_COMBINE_THREADS / WARP,
    MANY_BYTES = 16 << 20, /* of rows: fewer are brought before the kernel sooner than in parts */
    COPYING = 32,          /* blocks that copy rows, beside those that pull and sum */
    REDUCING = 64,         /* that sum rows by expert */
};

/* ---- rows and weights into the slot ---- */

/*
 * Whether blocks of the kernel bring outputs into the input: if there are many, in packs of 16 bytes. Where ranks may
 * be out no part is waited for.
 */
static int is_in_parts(const cuda_normal_t *mode, const xep_op_t *op)
{
    const xep_combine_args_t *args = op->combine;
    if (args->x == NULL || mode->cuda.device->gone != NULL || mode->cuda.device->multiprocessors < 2) return 0;
    const uint64_t bytes = xep_combine_row_bytes(args);
    return (bytes | args->x_stride | (uintptr_t)args->x) % 16 == 0 && op->recv->rows * bytes >= MANY_BYTES;
}

/* Else they are brought before the kernel. */
static xep_status_t bring_rows(const cuda_normal_t *mode, const xep_op_t *op)
{
    const xep_combine_args_t *args = op->combine;
    const normal_t *normal = &mode->normal;
    char *input = xep_kit_own_area(&normal->kit, normal->layout.common.input, op->slot);
    const size_t stride = normal->layout.common.combine_stride;
    if (args->slots == NULL)
        return mode->cuda.device->ops->copy(mode->cuda.device, input, stride, args->x, args->x_stride,
                                            xep_combine_row_bytes(args), op->recv->rows, args->stream);
    const xep_reduce_args_t reduce = {.slots = args->slots,
                                      .x = args->x,
                                      .x_stride = args->x_stride,
                                      .dtype = args->dtype,
                                      .hidden = args->hidden,
                                      .out = input,
                                      .out_stride = stride,
                                      .out_dtype = args->dtype,
                                      .stream = args->stream};
    return cuda_normal_reduce((void *)(uintptr_t)mode, op->recv, &reduce);
}

/* NULL says that rows are in the input already (zero copy), or that there are no weights. */
static xep_status_t enqueue_input(const cuda_normal_t *mode, const xep_op_t *op)
{
    const xep_combine_args_t *args = op->combine;
    const normal_t *normal = &mode->normal;
    const size_t weights = normal_slot(normal, op->slot)->routing->topk * sizeof(float);
    xep_status_t status = args->x == NULL || is_in_parts(mode, op) ? XEP_OK : bring_rows(mode, op);
    if (status == XEP_OK && args->topk_weights != NULL)
        status = mode->cuda.device->ops->copy(mode->cuda.device,
                                              xep_kit_own_area(&normal->kit, normal->layout.input_weights, op->slot),
                                              weights, args->topk_weights, args->topk_weights_stride, weights,
                                              op->recv->rows, args->stream);
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
    if (weighted && routing->tokens == 0 && mode->routings[cuda_routing_index(&mode->normal, routing)].counts_there)
        offer[1] = UINT64_MAX;
}

/*
 * Outputs that blocks beside those that sum bring into the input. All run at the same time: of a device that has too
 * few multiprocessors for both, the buffer gives up to half of its own.
 */
static void add_input(const cuda_normal_t *mode, const xep_op_t *op, xep_cuda_combine_t *sum, uint32_t *blocks_p)
{
    const xep_combine_args_t *args = op->combine;
    const normal_t *normal = &mode->normal;
    const uint32_t all = mode->cuda.device->multiprocessors, most = args->slots == NULL ? COPYING : REDUCING;
    if (all - *blocks_p < most) *blocks_p -= (uint32_t)xep_least(most - (all - *blocks_p), *blocks_p / 2);
    sum->sum.together = 1;
    sum->sum.beside = (uint32_t)xep_least(most, all - *blocks_p);
    sum->input =
        (xep_cuda_input_t){args->x, args->x_stride, args->slots,
                           xep_kit_own_area(&normal->kit, normal->layout.common.input, op->slot), mode->copied};
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
    uint32_t blocks = cuda_multiprocessors(&normal->kit);
    xep_cuda_combine_t sum = {
        .life = cuda_life(&mode->cuda),
        .peer = mode->cuda.peer,
        .rank = shape->rank,
        .nranks = shape->nranks,
        .sum = {.tokens = (uint32_t)routing->tokens},
        .max_dests = normal->layout.max_dests,
        .now = mode->now,
        .row_stride = normal->layout.common.combine_stride,
        .dest = mode->routings[cuda_routing_index(normal, routing)].dest,
        .there = mode->slots[op->slot].there,
        .verdict = mode->slots[op->slot].verdict,
        .rank_rows = mode->routings[cuda_routing_index(normal, routing)].rank_rows,
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
        .chosen = mode->routings[cuda_routing_index(normal, routing)].chosen,
        .owner = mode->cuda.owner,
        .missing = args->missing,
        .missing_stride = args->missing_stride,
    };
    fill_offer(mode, op, sum.offer);
    if (is_in_parts(mode, op)) add_input(mode, op, &sum, &blocks);
    const uint32_t telling = sum.sum.beside != 0; /* a warp */
    const uint32_t bytes = cuda_lay_sums(args, blocks, sum.max_dests, xep_cuda_sum_chunk(sum.max_dests),
                                         MOST_WARPS - telling, cuda_shared_bytes(&mode->cuda), 0, &sum.sum);
    return cuda_launch(&mode->cuda, op, kernel, blocks + sum.sum.beside, (sum.sum.warps + telling) * WARP, bytes, &sum);
}

/* ---- steps ---- */

/* The mark is last, so that the buffer's next operation comes behind all of this one, on whatever stream it is. */
static xep_status_t enqueue(void *opaque, xep_op_t *op)
{
    cuda_normal_t *mode = opaque;
    const xep_device_ops_t *ops = mode->cuda.device->ops;
    xep_status_t status = enqueue_input(mode, op);
    if (status == XEP_OK) status = launch_sums(mode, op);
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
                                   {"slots", rows ? args->slots : NULL},
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
