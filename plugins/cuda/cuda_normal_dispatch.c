/* SPDX-License-Identifier: BSD-3-Clause */

/* Dispatch: plan and rows are enqueued, then the host waits for the counts. */
#include "cuda_normal.h"

#include <string.h>

/* Of the measured choices, those that fill the links with the fewest multiprocessors (contrib/check-cuda.sh). */
enum {
    COPYING = 4, /* warps that keep bulk copies on their way, a thread each, and what each has on its way */
    STAGES = 3,
    PLAIN = 24,       /* warps that copy rows which no bulk copy can move */
    METADATA = 8,     /* warps that move what belongs to rows */
    CASTING = 32,     /* warps that cast */
    FEW_TOKENS = 512, /* so few that each block makes the plan sooner than a kernel of its own would end */
    WARP = 32
};

/*
 * The number of the slot whose routing this operation uses: with a cached handle not that of its own slot. What the
 * device keeps of a routing lies under the same number.
 */
static uint32_t routing_index(const normal_t *mode, const xep_op_t *op)
{
    return cuda_routing_index(mode, normal_slot(mode, op->slot)->routing);
}

/* ---- launches ---- */

static xep_cuda_plan_t plan_of(const cuda_normal_t *mode, const xep_op_t *op)
{
    const xep_dispatch_args_t *args = op->dispatch;
    const xep_shape_t *shape = mode->normal.kit.shape;
    const cuda_routing_t *routing = &mode->routings[routing_index(&mode->normal, op)];
    return (xep_cuda_plan_t){
        .life = cuda_life(&mode->cuda),
        .topk_idx = args->topk_idx,
        .topk_idx_stride = args->topk_idx_stride,
        .wide = args->topk_idx_dtype == XEP_INT64,
        .tokens = (uint32_t)args->tokens,
        .topk = args->topk,
        .experts = shape->experts,
        .nranks = shape->nranks,
        .max_dests = mode->normal.layout.max_dests,
        .number = mode->cuda.numbers,
        .owner = mode->cuda.owner,
        .by_selection = (uint32_t)shape->sums_by_selection,
        .scratch = mode->scratch,
        .dest = routing->dest,
        .chosen = routing->chosen,
        .rows = routing->rows,
        .selections = routing->selections,
        .wrong = mode->wrong,
    };
}

/*
 * Reads the caller's topk_idx, which may be overwritten as soon as the stream is past the dispatch: all later ones use
 * its copy in the routing.
 */
static xep_status_t launch_plan(cuda_normal_t *mode, const xep_op_t *op, xep_cuda_plan_t *plan)
{
    return cuda_launch(&mode->cuda, op, CUDA_PLAN, XEP_CUDA_PLAN_BLOCKS, XEP_CUDA_PLAN_THREADS,
                       2 * plan->experts * (uint32_t)sizeof(uint32_t), plan);
}

/* Where arrays lie in a slot: the kernel makes addresses of it, once it knows the slots of the peers. */
static void fill_areas(const normal_t *mode, const xep_op_t *op, xep_cuda_area_t areas[XEP_CUDA_AREAS])
{
    const xep_dispatch_args_t *args = op->dispatch;
    const normal_layout_t *at = &mode->layout;
    const uint64_t weights = args->topk * sizeof(float);
    const struct {
        xep_area_t area;
        uint64_t bytes;
    } rows[XEP_CUDA_AREAS] = {
        [XEP_CUDA_X] = {at->common.x, xep_row_stride(xep_dispatch_row_bytes(args))},
        [XEP_CUDA_SRC_TOKEN] = {at->common.tokens, sizeof(int32_t)},
        [XEP_CUDA_TOPK_IDX] = {at->common.idx, args->topk * xep_elem_bytes(args->topk_idx_dtype)},
        [XEP_CUDA_WEIGHTS] = {at->common.weights, weights},
        [XEP_CUDA_SCALES] = {at->common.beside, args->nscales * (uint64_t)4},
        [XEP_CUDA_INPUT] = {at->common.input, at->common.combine_stride},
        [XEP_CUDA_INPUT_WEIGHTS] = {at->input_weights, weights},
    };
    for (int i = 0; i < XEP_CUDA_AREAS; i++)
        areas[i] = (xep_cuda_area_t){rows[i].area.first, rows[i].area.stride, rows[i].bytes};
}

static xep_cuda_counts_t counts_of(const cuda_normal_t *mode, const xep_op_t *op)
{
    const normal_t *normal = &mode->normal;
    const cuda_routing_t *routing = &mode->routings[routing_index(normal, op)];
    const cuda_slot_t *slot = &mode->slots[op->slot];
    xep_cuda_counts_t counts = {
        .header = normal_slot(normal, op->slot)->record,
        .records = normal_record_offset(normal, 0, 0),
        .record_bytes = normal->layout.record_bytes,
        .word = normal->layout.line + offsetof(normal_line_t, counts),
        .slots = normal->kit.shape->slots,
        .recv_rows = normal->layout.common.recv_rows,
        .rank_rows = routing->rank_rows,
        .there = slot->there,
        .verdict = slot->verdict,
        .mirror = mode->mirror + normal_record_begin(normal, op->turn, 0),
        .wrong_first = slot->wrong_first,
        .counted = slot->counted,
        .local = routing->local,
        .counts_there = (uint32_t)cuda_counts_there(op),
        .alignment = op->dispatch->expert_alignment,
        .src_begin = slot->src_begin,
        .expert_rows = slot->expert_rows,
        .first = slot->first,
        .refused = mode->refused,
        .refusal = mode->refusal,
        .deadline = cuda_deadline(&mode->cuda, op, CUDA_COUNTS),
    };
    fill_areas(normal, op, counts.area);
    return counts;
}

/* Bulk copies take multiples of 16 bytes at multiples of 16. */
static int is_bulk(const xep_dispatch_args_t *args)
{
    return (xep_dispatch_row_bytes(args) | args->x_stride | (uintptr_t)args->x) % 16 == 0;
}

/*
 * Enqueued before anybody knows whether rows may move: the kernel finds that out. So the host is never in the way of
 * the rows.
 */
static xep_cuda_dispatch_t rows_of(cuda_normal_t *mode, const xep_op_t *op)
{
    const xep_dispatch_args_t *args = op->dispatch;
    const normal_t *normal = &mode->normal;
    const uint64_t bytes = xep_dispatch_row_bytes(args);
    xep_cuda_dispatch_t rows = {
        .plan = plan_of(mode, op),
        .counts = counts_of(mode, op),
        .peer = mode->cuda.peer,
        .rank = normal->kit.shape->rank,
        .nscales = args->nscales,
        .wide = args->topk_idx_dtype == XEP_INT64,
        .copying = is_bulk(args) ? COPYING : PLAIN,
        .stages = is_bulk(args) ? STAGES : 0,
        .now = mode->now,
        .x = args->x,
        .x_stride = args->x_stride,
        .row_bytes = bytes,
        .row_stride = xep_row_stride(bytes),
        .weights = (const char *)args->topk_weights,
        .weights_stride = args->topk_weights_stride,
        .scales = args->scales,
        .scales_token_stride = args->scales_token_stride,
        .scales_stride = args->scales_stride,
        .first_expert = mode->cuda.first_expert,
        .done = normal->layout.line + offsetof(normal_line_t, done),
        .word_stride = sizeof(normal_line_t),
        .deadline = cuda_deadline(&mode->cuda, op, CUDA_ROWS),
        .outs = cuda_outs(&mode->cuda, normal->kit.shape->nranks),
        .out = mode->slots[op->slot].out,
    };
    if (!cuda_counts_there(op)) return rows;
    rows.tail = (uint32_t *)(void *)xep_kit_own_area(&normal->kit, normal->layout.common.idx, op->slot);
    rows.tail_words = args->capacity * args->topk * (rows.wide + UINT64_C(1));
    return rows;
}

/* Shared memory of a block: with fewer copying warps where stages and the board have no room together. */
static uint32_t lay_stages(const cuda_normal_t *mode, xep_cuda_dispatch_t *rows)
{
    const uint64_t stage = (rows->row_bytes < XEP_CUDA_CHUNK ? rows->row_bytes : XEP_CUDA_CHUNK) + sizeof(uint64_t);
    const uint64_t board = xep_cuda_board_bytes(rows->plan.nranks), room = cuda_shared_bytes(&mode->cuda);
    while (rows->copying > 1 && rows->copying * rows->stages * stage + board > room) rows->copying--;
    return (uint32_t)(rows->copying * rows->stages * stage + board);
}

/* The second part, behind the mark of what the first one is. */
static xep_status_t launch_rest(const cuda_normal_t *mode, const xep_op_t *op, uint32_t threads, uint32_t bytes,
                                xep_cuda_dispatch_t *rows)
{
    xep_device_t *device = mode->cuda.device;
    xep_status_t status = device->ops->part(device, cuda_stream(op));
    rows->part = XEP_CUDA_REST;
    if (status != XEP_OK) return status;
    return cuda_launch(&mode->cuda, op, CUDA_MOVE_WITH_ALL, cuda_multiprocessors(&mode->normal.kit), threads, bytes,
                       rows);
}

/*
 * Few tokens are planned in the kernel that moves them, many by one before it: then the other begins meanwhile, and
 * waits until that has ended.
 */
static xep_status_t launch_rows(cuda_normal_t *mode, const xep_op_t *op)
{
    xep_cuda_dispatch_t rows = rows_of(mode, op);
    uint32_t bytes = lay_stages(mode, &rows);
    const uint64_t plan = xep_cuda_plan_bytes(&rows.plan);
    const int cached = op->cached_slot != XEP_NO_SLOT;
    const uint32_t blocks = cuda_multiprocessors(&mode->normal.kit);
    rows.planning = !cached && rows.plan.tokens <= FEW_TOKENS && bytes + plan <= cuda_shared_bytes(&mode->cuda);
    if (rows.planning) bytes += (uint32_t)plan;
    const uint32_t threads = (rows.copying + METADATA) * WARP;
    const cuda_kernel_t kernel = mode->cuda.device->gone == NULL ? CUDA_MOVE_WITH_ALL : CUDA_MOVE;
    const int follows = !cached && !rows.planning;
    rows.counts.header.first = cuda_normal_part(mode, op);
    rows.part = rows.counts.header.first == 0 ? XEP_CUDA_ALL : XEP_CUDA_FIRST;
    xep_status_t status = follows ? launch_plan(mode, op, &rows.plan) : XEP_OK;
    if (status != XEP_OK) return status;
    status = (follows ? cuda_launch_after : cuda_launch)(&mode->cuda, op, (int)kernel, blocks, threads, bytes, &rows);
    return status == XEP_OK && rows.part == XEP_CUDA_FIRST ? launch_rest(mode, op, threads, bytes, &rows) : status;
}

/* ---- steps ---- */

/* On the stream of the rows, before they are moved: they are read as the caller's would be. */
static xep_status_t enqueue_cast(void *opaque, xep_op_t *op)
{
    cuda_normal_t *mode = opaque;
    const xep_dispatch_args_t *to = op->dispatch;
    xep_cuda_cast_rows_t rows = {cuda_life(&mode->cuda), cuda_cast_of(normal_state(op)->given), mode->casts};
    rows.cast.row_stride = to->x_stride;
    rows.cast.scales = (uint64_t)((const char *)to->scales - mode->casts);
    rows.cast.scales_stride = (uint64_t)to->scales_token_stride;
    if (to->tokens == 0) return XEP_OK;
    return cuda_launch(&mode->cuda, op, CUDA_CAST, cuda_multiprocessors(&mode->normal.kit), CASTING * WARP, 0, &rows);
}

/* With a cached handle the plan of that dispatch is used again, and only the counts of it are compared. */
static xep_status_t enqueue(void *opaque, xep_op_t *op)
{
    cuda_normal_t *mode = opaque;
    const xep_device_ops_t *ops = mode->cuda.device->ops;
    xep_status_t status = launch_rows(mode, op);
    return status == XEP_OK ? ops->mark(mode->cuda.device, cuda_stream(op)) : status;
}

/*
 * The word holds the host's epoch of the dispatch that last used the slot, so it needs no clearing. Acquire goes with
 * the device's fence before it: then the records in the mirror are there, too. A kernel that gave up never writes it.
 */
static xep_status_t wait_counts(void *opaque, xep_op_t *op)
{
    const cuda_normal_t *mode = opaque;
    if (cuda_counts_there(op)) return XEP_OK;
    if (__atomic_load_n(mode->slots[op->slot].counted, __ATOMIC_ACQUIRE) == op->epoch) return XEP_OK;
    xep_status_t status = cuda_check_earlier(opaque, op); /* or this one */
    return status == XEP_OK ? XEP_INPROGRESS : status;
}

/* What the plan has counted is in the record of this rank, as the others see it. */
static void take_own_counts(normal_t *mode, const xep_op_t *op)
{
    const xep_shape_t *shape = mode->kit.shape;
    const normal_routing_t *routing = normal_slot(mode, op->slot)->routing;
    const char *counts = normal_find_record(mode, op, shape->rank) + sizeof(normal_record_t);
    size_t rows = shape->nranks * sizeof *routing->rows;
    if (op->cached_slot != XEP_NO_SLOT) return;
    memcpy(routing->rows, counts, rows);
    memcpy(routing->selections + mode->kit.first_expert[shape->rank], counts + rows,
           shape->local_experts * sizeof *routing->selections);
}

/* All ranks have the same verdict; the one whose index it is can say which. */
static void judge_indices(const cuda_normal_t *mode, xep_op_t *op)
{
    const normal_t *normal = &mode->normal;
    const xep_env_t *env = normal->kit.env;
    const uint64_t first = *mode->slots[op->slot].wrong_first;
    for (uint32_t r = 0; r < env->shape->nranks; r++) {
        if (normal_slot(normal, op->slot)->from[r].wrong == 0) continue;
        xep_kit_state(op)->verdict =
            r == env->shape->rank
                ? env->fail(env, op, XEP_ERR_INVALID, "invalid topk_idx[%llu][%llu] (-1, or one of %u experts)",
                            (unsigned long long)(first / op->dispatch->topk),
                            (unsigned long long)(first % op->dispatch->topk), env->shape->experts)
                : env->fail(env, op, XEP_ERR_INVALID, "invalid topk_idx of rank %u (each -1, or one of %u experts)", r,
                            env->shape->experts);
        /* this rank's own ends the search: only of that one the index is known */
        if (r == env->shape->rank) return;
    }
}

/* Rows beyond those received, where the capacity is fixed: no expert. */
static xep_status_t enqueue_tail(const cuda_normal_t *mode, const xep_op_t *op)
{
    const xep_recv_t *recv = op->recv;
    const xep_device_ops_t *ops = mode->cuda.device->ops;
    size_t row = recv->topk * xep_elem_bytes(op->dispatch->topk_idx_dtype);
    if (recv->capacity == recv->rows) return XEP_OK;
    xep_status_t status = ops->fill(mode->cuda.device, (char *)recv->topk_idx + recv->rows * row, 0xff,
                                    (recv->capacity - recv->rows) * row, cuda_stream(op));
    return status == XEP_OK ? ops->mark(mode->cuda.device, cuda_stream(op)) : status;
}

/* Filled at the end of the kernel. */
static void show_out(const cuda_normal_t *mode, const xep_op_t *op)
{
    if (mode->cuda.device->gone != NULL) op->recv->out = mode->slots[op->slot].out;
}

/*
 * The device has decided already, with the same records. Here the host comes to the same verdict, with the sentence for
 * it, and shows the rows where they will be: they may still be on their way, on the stream that the caller gave.
 */
static xep_status_t agree(void *opaque, xep_op_t *op)
{
    cuda_normal_t *mode = opaque;
    normal_t *normal = &mode->normal;
    if (cuda_counts_there(op)) {
        cuda_normal_show_there(mode, op);
        show_out(mode, op);
        return XEP_OK;
    }
    take_own_counts(normal, op);
    xep_status_t status = normal_take_records(normal, op, normal_find_record);
    if (status != XEP_OK) return status;
    normal_judge_room(normal, op);
    judge_indices(mode, op);
    if (xep_kit_state(op)->verdict != XEP_OK) return XEP_OK;
    normal_show_rows(normal, op);
    show_out(mode, op);
    return enqueue_tail(mode, op);
}

const xep_step_t cuda_dispatch_steps[] = {
    {.name = "earlier operations", .run = cuda_check_earlier},
    {.name = "casts", .run = enqueue_cast, .kinds = XEP_KIND_CASTS},
    {.name = "launches", .run = enqueue},
    {.name = "counts", .run = wait_counts},
    {.name = "agreement", .run = agree},
    {.name = "the end", .run = normal_tell_rows},
    {0},
};

/* Without tokens nothing is read, and the addresses may be anything. The rows are counted by the host, for itself. */
static xep_status_t check_memory(const cuda_normal_t *mode, xep_op_t *op)
{
    const xep_dispatch_args_t *args = op->dispatch;
    xep_device_t *device = mode->cuda.device;
    const cuda_array_t arrays[] = {{"x", args->x},
                                   {"topk_idx", args->topk_idx},
                                   {"topk_weights", args->topk_weights},
                                   {"scales", args->scales}};
    xep_status_t status = device->ops->check_host(device, "recv_rows_p", args->recv_rows_p);
    if (status != XEP_OK || args->tokens == 0) return status;
    return cuda_check_arrays(&mode->cuda, arrays, sizeof arrays / sizeof arrays[0]);
}

/* A launch of a graph is no call, in which the host could wait. */
static xep_status_t check_captured(const cuda_normal_t *mode, xep_op_t *op)
{
    const xep_env_t *env = mode->normal.kit.env;
    if (cuda_counts_there(op) || !mode->cuda.device->ops->is_captured(mode->cuda.device, cuda_stream(op)))
        return XEP_OK;
    return env->fail(env, op, XEP_ERR_INVALID,
                     "invalid stream: %p is being captured (one that is not, or XEP_DISPATCH_COUNTS_THERE with a "
                     "capacity: the host waits for the counts)",
                     cuda_stream(op));
}

/*
 * The routing has no lists on the host: topk, tokens and epoch are what later calls ask for. From xep_steps_begin() on
 * an error is one of the operation: other ranks may know of it.
 */
xep_status_t cuda_normal_dispatch(void *opaque, xep_op_t *op)
{
    cuda_normal_t *mode = opaque;
    normal_t *normal = &mode->normal;
    normal_routing_t *routing;
    xep_status_t status = cuda_normal_check_there(mode, op);
    if (status == XEP_OK) status = check_memory(mode, op);
    if (status == XEP_OK) status = check_captured(mode, op);
    if (status == XEP_OK) status = mode->cuda.device->ops->after_mark(mode->cuda.device, cuda_stream(op));
    if (status == XEP_OK) status = normal_choose_routing(normal, op, &routing);
    if (status != XEP_OK) return status;
    normal_use_routing(normal, op, routing);
    if (op->cached_slot == XEP_NO_SLOT) {
        routing->topk = op->dispatch->topk;
        routing->tokens = op->dispatch->tokens;
        routing->epoch = op->epoch;
        mode->routings[cuda_routing_index(normal, routing)].counts_there = cuda_counts_there(op);
    }
    normal_make_record(normal, op);
    if (op->dispatch->quant != XEP_QUANT_NONE) status = normal_take_casts(normal, op, mode->casts);
    if (status == XEP_OK && op->dispatch->nscales != 0) status = normal_take_fields(normal, op);
    return status == XEP_OK ? xep_steps_begin(mode, op) : status;
}
