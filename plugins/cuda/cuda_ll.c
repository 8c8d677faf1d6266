/* SPDX-License-Identifier: BSD-3-Clause */

/* The plugin: its memory on both sides, its kernels, its name. */
#include "cuda_ll.h"

#include "cast.h"
#include "cuda_images.h"

/* ---- memory ---- */

enum { DEVICE_LINE = 128 /* bytes, of the caches of a device */ };

/* Returns where an array begins that has lines of its own: what is laid behind it begins on another one. */
static uint64_t lay_lines(xep_carve_t *carve, uint64_t count, uint64_t bytes)
{
    xep_carve_align(carve, DEVICE_LINE);
    const uint64_t begin = xep_carve_offset(carve, count, bytes);
    xep_carve_align(carve, DEVICE_LINE);
    return begin;
}

/*
 * The layout of the host mode, which ll_t has, and heads that are delivered to everyone: no two ranks write to the same
 * line of a device.
 */
static xep_status_t lay_heap(const xep_shape_t *shape, xep_heap_layout_t *common, xep_carve_t region[XEP_REGIONS])
{
    cuda_ll_layout_t *at = (cuda_ll_layout_t *)(void *)common;
    const uint64_t selections = shape->tokens * shape->topk, lines = xep_notices_ring(shape) * shape->nranks;
    xep_carve_t head = {0};
    xep_status_t status = ll_lay_heap(shape, common, region);
    lay_lines(&head, selections, sizeof(xep_cuda_pick_t));
    at->head_weights = lay_lines(&head, selections, sizeof(float));
    at->head_counts = lay_lines(&head, shape->experts, sizeof(uint32_t));
    at->head_bytes = head.end;
    region[XEP_REGION_METADATA].overflow |= head.overflow;
    at->own_words = lay_lines(&region[XEP_REGION_CONTROL], 1, sizeof(xep_cuda_own_words_t));
    at->words = lay_lines(&region[XEP_REGION_CONTROL], lines, sizeof(xep_cuda_ll_words_t));
    at->told =
        lay_lines(&region[XEP_REGION_CONTROL], shape->slots * (uint64_t)shape->nranks, sizeof(xep_cuda_ll_told_t));
    at->heads = lay_lines(&region[XEP_REGION_METADATA], lines, head.end);
    at->sums = xep_carve_offset(&region[XEP_REGION_ROWS], shape->slots * shape->nranks * shape->tokens,
                                common->combine_stride);
    at->inbox = xep_carve_offset(&region[XEP_REGION_ROWS], 2 * shape->slots * selections, common->combine_stride);
    at->inbox_bytes = region[XEP_REGION_ROWS].end - at->inbox;
    return status;
}

/* What the host knows of an operation; the rest is on the device. */
static void lay_host(void *opaque, xep_carve_t *arena)
{
    cuda_ll_t *mode = opaque;
    mode->slots = xep_carve_array(arena, mode->ll.kit.shape->slots, sizeof *mode->slots);
}

/*
 * The arrays of the host mode's slot are device memory here: the kernels count into them, and the user gets their
 * addresses.
 */
static void lay_slot(const xep_shape_t *shape, xep_carve_t *memory, ll_slot_t *slot, cuda_ll_slot_t *beside)
{
    const uint64_t selections = shape->tokens * shape->topk, pairs = (uint64_t)shape->local_experts * shape->nranks;
    beside->state = xep_carve_array(memory, 1, sizeof *beside->state);
    beside->kept.picks = xep_carve_array(memory, selections, sizeof *beside->kept.picks);
    beside->kept.weights = xep_carve_array(memory, selections, sizeof *beside->kept.weights);
    beside->came.tokens = xep_carve_array(memory, shape->nranks, sizeof *beside->came.tokens);
    beside->came.rows = xep_carve_array(memory, shape->nranks * selections, sizeof *beside->came.rows);
    beside->there = xep_carve_array(memory, shape->nranks, sizeof *beside->there);
    beside->out = xep_carve_array(memory, shape->nranks, sizeof *beside->out);
    slot->pair_begin = xep_carve_array(memory, pairs, sizeof *slot->pair_begin);
    slot->pair_count = xep_carve_array(memory, pairs, sizeof *slot->pair_count);
    slot->expert_begin = xep_carve_array(memory, shape->local_experts, sizeof *slot->expert_begin);
    slot->expert_count = xep_carve_array(memory, shape->local_experts, sizeof *slot->expert_count);
    slot->expert_rows = xep_carve_array(memory, shape->local_experts, sizeof *slot->expert_rows);
}

static void lay_device(void *opaque, xep_carve_t *memory)
{
    cuda_ll_t *mode = opaque;
    mode->now = xep_carve_array(memory, 1, sizeof *mode->now);
    mode->wrong = xep_carve_array(memory, 1, sizeof *mode->wrong);
    for (uint32_t s = 0; s < mode->ll.kit.shape->slots; s++)
        lay_slot(mode->ll.kit.shape, memory, ll_slot(&mode->ll, s), &mode->slots[s]);
}

/* What the receiving kernel writes when it refuses a dispatch, for the host to make a sentence of. */
static void lay_pinned(void *opaque, xep_carve_t *memory)
{
    cuda_ll_t *mode = opaque;
    mode->refusal = xep_carve_array(memory, 1, sizeof *mode->refusal);
    mode->refused = xep_carve_array(memory, mode->ll.kit.shape->nranks, sizeof *mode->refused);
}

/* ---- operations ---- */

/* Each rank keeps the number of its own first wrong index alone; of others it only knows that there is one. */
static xep_status_t tell_wrong(const cuda_ll_t *mode, xep_op_t *op, uint32_t rank)
{
    const xep_env_t *env = mode->ll.kit.env;
    const unsigned long long first = mode->refusal->wrong, topk = mode->refused[env->shape->rank].topk;
    if (rank == env->shape->rank)
        return env->fail(env, op, XEP_ERR_PROTOCOL,
                         "an earlier dispatch moved nothing: invalid topk_idx[%llu][%llu] (-1, or one of %u experts)",
                         first / topk, first % topk, env->shape->experts);
    return env->fail(env, op, XEP_ERR_PROTOCOL,
                     "an earlier dispatch moved nothing: invalid topk_idx of rank %u (each -1, or one of %u experts)",
                     rank, env->shape->experts);
}

/* The sentence is that of the host mode; the status is one that breaks the buffer, as ranks find it at other times. */
static xep_status_t check_refusal(void *opaque, xep_op_t *op)
{
    const cuda_ll_t *mode = opaque;
    const xep_env_t *env = mode->ll.kit.env;
    const xep_cuda_ll_refusal_t *refusal = mode->refusal;
    if (__atomic_load_n(&refusal->refused, __ATOMIC_ACQUIRE) == 0) return XEP_OK;
    const uint32_t self = env->shape->rank;
    if (mode->refused[self].wrong) return tell_wrong(mode, op, self);
    for (uint32_t r = 0; r < env->shape->nranks; r++)
        if (mode->refused[r].wrong) return tell_wrong(mode, op, r);
    if (ll_compare_notices(&mode->ll, op, mode->refused) != XEP_OK) return env->fail(env, op, XEP_ERR_PROTOCOL, NULL);
    if (refusal->rank >= env->shape->nranks)
        return env->fail(env, op, XEP_ERR_PROTOCOL,
                         "an earlier dispatch moved nothing: a notice does not fit this buffer or this operation");
    return env->fail(env, op, XEP_ERR_PROTOCOL,
                     "an earlier dispatch moved nothing: rank %u would get %llu rows%s, it has room for %llu",
                     refusal->rank, (unsigned long long)refusal->rows,
                     mode->refused[refusal->rank].padded ? " of one expert" : "",
                     (unsigned long long)mode->refused[refusal->rank].capacity);
}

/* ---- the plugin ---- */

static const cuda_kernel_name_t kernel_names[CUDA_LL_KERNELS] = {
    [CUDA_LL_DISPATCH] = {CUDA_IMAGE_LL_DISPATCH, "xep_cuda_ll_dispatch"},
    [CUDA_LL_DISPATCH_USUAL] = {CUDA_IMAGE_LL_DISPATCH, "xep_cuda_ll_dispatch_usual"},
    [CUDA_LL_OFFER] = {CUDA_IMAGE_LL_COMBINE, "xep_cuda_ll_offer"},
    [CUDA_LL_PUSH_BF16] = {CUDA_IMAGE_LL_COMBINE, "xep_cuda_ll_push_bf16"},
    [CUDA_LL_PUSH_FP16] = {CUDA_IMAGE_LL_COMBINE, "xep_cuda_ll_push_fp16"},
    [CUDA_LL_PUSH_FP32] = {CUDA_IMAGE_LL_COMBINE, "xep_cuda_ll_push_fp32"},
    [CUDA_LL_SUM_BF16] = {CUDA_IMAGE_LL_COMBINE, "xep_cuda_ll_sum_bf16"},
    [CUDA_LL_SUM_FP16] = {CUDA_IMAGE_LL_COMBINE, "xep_cuda_ll_sum_fp16"},
    [CUDA_LL_SUM_FP32] = {CUDA_IMAGE_LL_COMBINE, "xep_cuda_ll_sum_fp32"},
    [CUDA_LL_ROWS_BF16] = {CUDA_IMAGE_LL_COMBINE, "xep_cuda_ll_rows_bf16"},
    [CUDA_LL_ROWS_FP16] = {CUDA_IMAGE_LL_COMBINE, "xep_cuda_ll_rows_fp16"},
    [CUDA_LL_ROWS_FP32] = {CUDA_IMAGE_LL_COMBINE, "xep_cuda_ll_rows_fp32"},
    [CUDA_LL_LAYOUT] = {CUDA_IMAGE_LL_LAYOUT, "xep_cuda_layout"},
};

static const char *const waited_for[CUDA_LL_LATE_WORDS] = {
    [CUDA_LL_NOTICES] = "rows",
    [CUDA_LL_OFFERS] = "outputs to combine",
    [CUDA_LL_READERS] = "the end of a combine",
};

/*
 * The same on all ranks. With few multiprocessors rows are pulled, as bulk copies keep more on its way for each; also
 * where ranks may be left out, and where there are so many parts of rows that 32 bits do not count them.
 */
static int pushes_rows(const cuda_ll_t *mode)
{
    enum { FEW = 32 /* multiprocessors */, PART = 512 /* bytes of a row, at least */ };
    const xep_shape_t *shape = mode->ll.kit.shape;
    const uint64_t parts = mode->layout.ll.common.combine_stride / PART + 1, rows = shape->tokens * shape->nranks;
    return mode->cuda.device->gone == NULL && mode->ll.kit.env->fewest >= FEW && rows <= UINT32_MAX / 2 / parts;
}

/* What kernels count from. */
static xep_status_t set_up(void *opaque)
{
    cuda_ll_t *mode = opaque;
    xep_device_t *device = mode->cuda.device;
    mode->ll.layout = mode->layout.ll;
    mode->cuda.words = mode->layout.own_words;
    xep_status_t status = device->ops->fill(device, mode->wrong, 0xff, sizeof *mode->wrong, NULL);
    char *inbox = mode->ll.kit.base[mode->ll.kit.shape->rank] + mode->layout.inbox;
    mode->pushes = pushes_rows(mode);
    if (status == XEP_OK && mode->pushes)
        status = device->ops->fill(device, inbox, 0xff, mode->layout.inbox_bytes, NULL);
    return status == XEP_OK ? cuda_clear_words(&mode->ll.kit) : status;
}

const cuda_mode_traits_t cuda_mode_traits = {
    .cuda = offsetof(cuda_ll_t, cuda),
    .images = CUDA_LL_IMAGES,
    .kernels = CUDA_LL_KERNELS,
    .kernel_names = kernel_names,
    .layout = CUDA_LL_LAYOUT,
    .late_words = CUDA_LL_LATE_WORDS,
    .waited_for = waited_for,
    .lay_device = lay_device,
    .lay_pinned = lay_pinned,
    .set_up = set_up,
    .check_earlier = check_refusal,
};

static const void *direct_image(void)
{
    return cuda_images[CUDA_IMAGE_LL_DIRECT];
}

const xep_kit_mode_t xep_kit_mode = {
    .mode_bytes = sizeof(cuda_ll_t),
    .layout = offsetof(cuda_ll_t, layout),
    .slot_bytes = sizeof(ll_slot_t),
    .dispatch_steps = cuda_ll_dispatch_steps,
    .combine_steps = cuda_ll_combine_steps,
    .lay_heap = lay_heap,
    .lay_arrays = lay_host,
    .memory = XEP_MEMORY_CUDA,
};

__attribute__((visibility("default"))) extern const xep_plugin_t xep_plugin;

const xep_plugin_t xep_plugin = {
    CUDA_MODE_OPS,
    .state_bytes = sizeof(cuda_ll_state_t),
    .name = "ll_cuda",
    .brief = "ll for device memory: kernels read the devices of all ranks directly; the host waits for nothing",
    .can = XEP_CAN_MASK | XEP_CAN_CAPTURE | XEP_CAN_PAYLOADS | XEP_CAN_SUM_AT_OWNER | LL_CAN,
    .casts = XEP_CASTS,
    .combine_casts = XEP_CASTS | 1u << XEP_QUANT_LOGFMT,
    .arrangements = LL_ARRANGEMENTS,
    .dispatch = cuda_ll_dispatch,
    .combine = cuda_ll_combine,
    .direct_image = direct_image,
};
