/* SPDX-License-Identifier: BSD-3-Clause */

/* Dispatch: a launch for each phase, or one for both. */
#include "cuda_ll.h"

enum {
    SENDING = 24, /* warps */
    RECEIVING = 24,
    CHUNK = 3072, /* bytes that each moves at once at most: 128 tokens are a piece or two for each warp of 64 blocks */
    LINE = 128,
    WARP = 32
};

static xep_cuda_ll_item_t item_of(const cuda_ll_t *mode, const xep_op_t *op)
{
    const ll_packet_t *packet = &((const ll_state_t *)op->state)->packet;
    const xep_fields_t *fields = &ll_slot(&mode->ll, op->slot)->fields;
    return (xep_cuda_ll_item_t){packet->row_bytes, packet->beside, fields->bytes / 4, packet->stride};
}

/* ---- send ---- */

/* Where each warp has what it moves, and a barrier: before the board. */
static uint32_t stages_bytes(uint32_t warps, uint32_t chunk)
{
    return warps * (chunk + (uint32_t)sizeof(uint64_t));
}

/* Indices as the user has them, or as the handle has kept them whose routing is used again. */
static xep_cuda_ll_given_t find_given(const cuda_ll_t *mode, const xep_op_t *op)
{
    const xep_dispatch_args_t *args = op->dispatch;
    xep_cuda_ll_given_t given = {.scales = args->scales,
                                 .scales_token_stride = args->scales_token_stride,
                                 .scales_stride = args->scales_stride};
    if (op->cached_slot == XEP_NO_SLOT) {
        given.topk_idx = args->topk_idx;
        given.topk_idx_stride = args->topk_idx_stride;
        given.wide = args->topk_idx_dtype == XEP_INT64;
        given.idx_bytes = (uint32_t)xep_elem_bytes(args->topk_idx_dtype);
        given.callers = mode->cuda.callers;
        given.weights = (const char *)args->topk_weights;
        given.weights_stride = args->topk_weights_stride;
        return given;
    }
    const xep_cuda_ll_kept_t *kept = &mode->slots[op->cached_slot].kept;
    given.topk_idx = (const char *)kept->picks;
    given.topk_idx_stride = args->topk * sizeof *kept->picks;
    given.idx_bytes = sizeof *kept->picks;
    given.weights = (const char *)kept->weights;
    given.weights_stride = args->topk * sizeof *kept->weights;
    return given;
}

static xep_cuda_cast_t cast_of(const xep_op_t *op, const xep_cuda_ll_item_t *item)
{
    xep_cuda_cast_t cast = cuda_cast_of(op->dispatch);
    cast.row_stride = cast.scales_stride = item->stride;
    cast.scales = item->scales;
    return cast;
}

static void fill_send(const cuda_ll_t *mode, const xep_op_t *op, xep_cuda_ll_dispatch_t *dispatch)
{
    dispatch->sends = 1;
    dispatch->kept = mode->slots[op->slot].kept;
    dispatch->given = find_given(mode, op);
    dispatch->cast = cast_of(op, &dispatch->item);
    dispatch->wrong = mode->wrong;
}

/* What both phases look at. */
static xep_cuda_ll_dispatch_t common_of(const cuda_ll_t *mode, const xep_op_t *op)
{
    return (xep_cuda_ll_dispatch_t){
        .at = cuda_ll_heaps(mode, op),
        .item = item_of(mode, op),
        .notice = ((const ll_state_t *)op->state)->notice,
    };
}

/* Where the call waits nothing comes between the phases: one launch makes both. */
static int is_in_one(const xep_op_t *op)
{
    return op->waits != 0;
}

static cuda_ll_kernel_t kernel_of(const xep_op_t *op)
{
    const xep_dispatch_args_t *args = op->dispatch;
    const int usual = args->quant == XEP_QUANT_NONE || (args->quant == XEP_QUANT_E4M3 && args->dtype == XEP_BF16);
    return usual ? CUDA_LL_DISPATCH_USUAL : CUDA_LL_DISPATCH;
}

/* x, scales, indices and weights are read by this launch alone: behind it on the stream they may be overwritten. */
static xep_status_t send(void *opaque, xep_op_t *op)
{
    cuda_ll_t *mode = opaque;
    if (is_in_one(op)) return XEP_OK;
    xep_cuda_ll_dispatch_t dispatch = common_of(mode, op);
    fill_send(mode, op, &dispatch);
    const uint32_t bytes = stages_bytes(SENDING, 0) + mode->ll.kit.shape->nranks * (uint32_t)sizeof(char *);
    xep_status_t status = cuda_launch(&mode->cuda, op, (int)kernel_of(op), cuda_multiprocessors(&mode->ll.kit),
                                      SENDING * WARP, bytes, &dispatch);
    return status == XEP_OK ? mode->cuda.device->ops->mark(mode->cuda.device, cuda_stream(op)) : status;
}

/* ---- receive ---- */

/*
 * Bytes of a piece that a warp moves at once: pieces of about the same length, so that the last one is no stub, and
 * of whole lines, as copies that begin within one take half as long again.
 */
static uint32_t choose_chunk(const xep_cuda_ll_item_t *item)
{
    const uint32_t bytes = (uint32_t)(item->scales + item->scale_words * 4 + 15) & ~15u;
    const uint32_t parts = (bytes + CHUNK - 1) / CHUNK;
    return ((bytes + parts - 1) / parts + LINE - 1) / LINE * LINE;
}

/*
 * What a receiving block keeps in shared memory of all ranks' counts, to find the places of all rows by itself. As much
 * on each rank, so that all refuse what is too much.
 */
static uint64_t board_bytes(const xep_shape_t *shape)
{
    const uint64_t pairs = (uint64_t)shape->most_experts * shape->nranks;
    return shape->nranks * (sizeof(ll_notice_t) + sizeof(uint64_t)) +
           (2 * pairs + shape->most_experts + shape->experts) * sizeof(uint32_t);
}

/* After show_rows(): rows go to where recv shows them. */
static void fill_receive(const cuda_ll_t *mode, const xep_op_t *op, xep_cuda_ll_dispatch_t *dispatch)
{
    const xep_dispatch_args_t *args = op->dispatch;
    const xep_recv_t *recv = op->recv;
    const ll_slot_t *slot = ll_slot(&mode->ll, op->slot);
    const xep_shape_t *shape = mode->ll.kit.shape;
    const int padded = dispatch->notice.padded, by_column = (args->flags & XEP_DISPATCH_SCALES_BY_COLUMN) != 0;
    dispatch->receives = 1;
    dispatch->chunk = choose_chunk(&dispatch->item);
    dispatch->wide = args->topk_idx_dtype == XEP_INT64;
    dispatch->x = recv->x;
    dispatch->x_stride = recv->x_stride;
    dispatch->src_token = recv->src_token;
    dispatch->topk_idx = recv->topk_idx;
    dispatch->weights = recv->topk_weights;
    dispatch->scales = recv->scales;
    dispatch->scales_token_stride = (uint64_t)recv->scales_token_stride;
    dispatch->scales_stride = (uint64_t)recv->scales_stride;
    if (padded && by_column) dispatch->scales_expert_stride = recv->nscales * dispatch->scales_stride;
    dispatch->capacity = recv->capacity;
    dispatch->rows_of_expert = padded ? shape->nranks * shape->tokens : 0;
    dispatch->expert_begin = slot->expert_begin;
    dispatch->expert_count = slot->expert_count;
    dispatch->expert_rows = slot->expert_rows;
    dispatch->pair_begin = slot->pair_begin;
    dispatch->pair_count = slot->pair_count;
    dispatch->stats = args->expert_stats;
    dispatch->rows = args->recv_rows_p;
    dispatch->out = mode->slots[op->slot].out;
    dispatch->came = mode->slots[op->slot].came;
    dispatch->mirror = (char *)mode->refused;
    dispatch->refusal = mode->refusal;
    dispatch->deadline = cuda_deadline(&mode->cuda, op, CUDA_LL_NOTICES);
}

/* Each warp has a piece and a barrier of its own; with many experts the board leaves room for fewer of them. */
static xep_status_t launch_receive(cuda_ll_t *mode, const xep_op_t *op)
{
    xep_cuda_ll_dispatch_t dispatch = common_of(mode, op);
    const uint32_t board = (uint32_t)board_bytes(mode->ll.kit.shape), blocks = cuda_multiprocessors(&mode->ll.kit);
    uint32_t warps = RECEIVING;
    fill_receive(mode, op, &dispatch);
    if (is_in_one(op)) fill_send(mode, op, &dispatch);
    while (warps > 1 && stages_bytes(warps, dispatch.chunk) + board > cuda_shared_bytes(&mode->cuda)) warps--;
    const uint32_t bytes = stages_bytes(warps, dispatch.chunk) + board;
    return cuda_launch_after(&mode->cuda, op, (int)kernel_of(op), blocks, warps * WARP, bytes, &dispatch);
}

/* How many rows come is counted on the device: the host shows the arrays, whose every row may be one. */
static void show_rows(cuda_ll_t *mode, const xep_op_t *op)
{
    ll_fill_recv(&mode->ll, op, mode->layout.ll.common.recv_rows);
    op->recv->rows = op->recv->capacity;
    if (mode->cuda.device->gone != NULL) op->recv->out = mode->slots[op->slot].out;
}

static xep_status_t show_and_receive(cuda_ll_t *mode, const xep_op_t *op)
{
    show_rows(mode, op);
    return launch_receive(mode, op);
}

static xep_status_t receive(void *opaque, xep_op_t *op)
{
    return cuda_ll_receive_in_turn(opaque, op, show_and_receive);
}

const xep_step_t cuda_ll_dispatch_steps[] = {
    {.name = "earlier operations", .run = cuda_check_earlier},
    {.name = "its send phase", .run = send},
    {.name = "receive phases of earlier operations", .does = "receive", .run = receive, .receives = 1},
    {0},
};

/* ---- begin ---- */

/* Without tokens the first four are not read, and may be anything; the other two are written all the same. */
static xep_status_t check_memory(const cuda_ll_t *mode, const xep_dispatch_args_t *args)
{
    const int tokens = args->tokens != 0;
    const cuda_array_t arrays[] = {{"x", tokens ? args->x : NULL},
                                   {"topk_idx", tokens ? args->topk_idx : NULL},
                                   {"topk_weights", tokens ? args->topk_weights : NULL},
                                   {"scales", tokens ? args->scales : NULL},
                                   {"expert_stats", args->expert_stats},
                                   {"recv_rows_p", args->recv_rows_p}};
    return cuda_check_arrays(&mode->cuda, arrays, sizeof arrays / sizeof arrays[0]);
}

/* Refused in the call, where it can be said: the launch would fail in the middle of the operation. */
static xep_status_t check_board(const cuda_ll_t *mode, xep_op_t *op)
{
    const xep_env_t *env = mode->ll.kit.env;
    const size_t bytes = board_bytes(env->shape) + CHUNK + sizeof(uint64_t), most = cuda_shared_bytes(&mode->cuda);
    if (bytes <= most) return XEP_OK;
    return env->fail(env, op, XEP_ERR_UNSUPPORTED,
                     "too many experts for this device: %u, with %zu bytes of shared memory (at most %zu)",
                     env->shape->experts, bytes, most);
}

/* What combines of this handle ask for. All else of the routing is kept on the device. */
static void note_routing(cuda_ll_t *mode, const xep_op_t *op)
{
    const xep_dispatch_args_t *args = op->dispatch;
    ll_slot_t *slot = ll_slot(&mode->ll, op->slot);
    slot->tokens = args->tokens;
    slot->topk = args->topk;
    slot->weights_given = op->cached_slot == XEP_NO_SLOT ? args->topk_weights != NULL
                                                         : ll_slot(&mode->ll, op->cached_slot)->weights_given;
    slot->weights_sent = (args->flags & XEP_DISPATCH_SEND_WEIGHTS) != 0;
}

/* All checks come before cuda_ll_begin(), which enqueues the send phase: from there on other ranks may know of it. */
xep_status_t cuda_ll_dispatch(void *opaque, xep_op_t *op)
{
    cuda_ll_t *mode = opaque;
    ll_state_t *state = op->state;
    xep_status_t status = ll_check_dispatch(&mode->ll, op);
    if (status == XEP_OK) status = check_board(mode, op);
    if (status == XEP_OK) status = check_memory(mode, op->dispatch);
    if (status != XEP_OK) return status;
    note_routing(mode, op);
    ll_fill_notice(&mode->ll, op, &state->notice);
    ll_make_packet(&state->notice, ll_slot(&mode->ll, op->slot)->fields.bytes, &state->packet);
    return cuda_ll_begin(mode, op);
}
