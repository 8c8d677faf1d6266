/* SPDX-License-Identifier: BSD-3-Clause */

/* The plugin: its memory on both sides, its kernels, its name. */
#include "cuda_normal.h"

#include "cuda_images.h"

/* ---- memory ---- */

enum { LINE_OF_DEVICE = 128 };

/*
 * Between devices, copies of rows that do not begin where a line does take a fifth longer. Records have an epoch beside
 * each number, so they are words: of the epochs before a reset none may stay.
 */
static xep_status_t lay_heap(const xep_shape_t *shape, xep_heap_layout_t *layout, xep_carve_t region[XEP_REGIONS])
{
    normal_layout_t *at = (normal_layout_t *)layout;
    region[XEP_REGION_ROWS].alignment = LINE_OF_DEVICE;
    xep_status_t status = normal_lay_heap(shape, layout, region);
    at->records = xep_carve_offset(&region[XEP_REGION_CONTROL], shape->nranks, 2 * at->record_bytes);
    return status;
}

/*
 * What the host keeps of a routing. The lists by token (dests, experts) are made on the device and stay there: NULL
 * here.
 */
static void lay_routing(const normal_t *mode, xep_carve_t *arena, normal_routing_t *routing)
{
    const xep_shape_t *shape = mode->kit.shape;
    uint64_t ranks = shape->nranks;
    routing->rows = xep_carve_array(arena, ranks, sizeof *routing->rows);
    routing->selections = xep_carve_array(arena, shape->experts, sizeof *routing->selections);
    routing->rank_rows = xep_carve_array(arena, ranks * ranks, sizeof *routing->rank_rows);
    routing->src_begin = xep_carve_array(arena, ranks + 1, sizeof *routing->src_begin);
    routing->there = xep_carve_array(arena, ranks, sizeof *routing->there);
    routing->local = xep_carve_array(arena, shape->local_experts, sizeof *routing->local);
}

/* What the host knows of an operation; the rest is beside it on the device. */
static void lay_host(void *opaque, xep_carve_t *arena)
{
    cuda_normal_t *mode = opaque;
    const xep_shape_t *shape = mode->normal.kit.shape;
    mode->routings = xep_carve_array(arena, shape->slots, sizeof *mode->routings);
    mode->slots = xep_carve_array(arena, shape->slots, sizeof *mode->slots);
    mode->normal.records = xep_carve_array(arena, shape->nranks, sizeof *mode->normal.records);
    mode->normal.skips = xep_carve_array(arena, shape->nranks, sizeof *mode->normal.skips);
    mode->normal.factors = xep_carve_array(arena, shape->nranks, sizeof *mode->normal.factors);
    for (uint32_t s = 0; s < shape->slots; s++) {
        normal_slot_t *slot = normal_slot(&mode->normal, s);
        lay_routing(&mode->normal, arena, &slot->own);
        slot->from = xep_carve_array(arena, shape->nranks, sizeof *slot->from);
        slot->expert_rows = xep_carve_array(arena, shape->local_experts, sizeof *slot->expert_rows);
    }
}

/* Arrays of kernels. Carved twice, first to measure and then to place: so this must not depend on what it has set. */
static void lay_device(void *opaque, xep_carve_t *memory)
{
    cuda_normal_t *mode = opaque;
    const xep_shape_t *shape = mode->normal.kit.shape;
    uint64_t ranks = shape->nranks, segments = (shape->tokens + 31) / 32;
    mode->now = xep_carve_array(memory, 1, sizeof *mode->now);
    mode->scratch = xep_carve_array(memory, 2 * segments * ranks, sizeof *mode->scratch);
    mode->casts = xep_carve_array(memory, 1, normal_cast_room(shape));
    mode->copied = xep_carve_array(memory, XEP_CUDA_PARTS, sizeof *mode->copied);
    mode->wrong = xep_carve_array(memory, 1, sizeof *mode->wrong);
    for (uint32_t s = 0; s < shape->slots; s++) {
        cuda_routing_t *routing = &mode->routings[s];
        routing->dest = xep_carve_array(memory, shape->tokens * mode->normal.layout.max_dests, sizeof *routing->dest);
        routing->chosen = xep_carve_array(memory, shape->tokens * shape->topk, sizeof *routing->chosen);
        routing->rows = xep_carve_array(memory, ranks, sizeof *routing->rows);
        routing->selections = xep_carve_array(memory, shape->experts, sizeof *routing->selections);
        routing->rank_rows = xep_carve_array(memory, ranks * ranks, sizeof *routing->rank_rows);
        routing->local = xep_carve_array(memory, shape->local_experts, sizeof *routing->local);
        cuda_slot_t *slot = &mode->slots[s];
        slot->there = xep_carve_array(memory, ranks, sizeof *slot->there);
        slot->verdict = xep_carve_array(memory, 1, sizeof *slot->verdict);
        slot->src_begin = xep_carve_array(memory, ranks + 1, sizeof *slot->src_begin);
        slot->expert_rows = xep_carve_array(memory, shape->local_experts, sizeof *slot->expert_rows);
        slot->first = xep_carve_array(memory, ranks, sizeof *slot->first);
        slot->first_end = xep_carve_array(memory, ranks, sizeof *slot->first_end);
        slot->out = xep_carve_array(memory, ranks, sizeof *slot->out);
    }
}

/* What kernels write and the host reads while they run. Each word has one writer, the device; the host clears none. */
static void lay_pinned(void *opaque, xep_carve_t *memory)
{
    cuda_normal_t *mode = opaque;
    const xep_shape_t *shape = mode->normal.kit.shape;
    mode->mirror = xep_carve_array(memory, (uint64_t)shape->slots * shape->nranks, mode->normal.layout.record_bytes);
    mode->refused = xep_carve_array(memory, shape->nranks, mode->normal.layout.record_bytes);
    mode->refusal = xep_carve_array(memory, 1, sizeof *mode->refusal);
    for (uint32_t s = 0; s < shape->slots; s++) {
        mode->slots[s].counted = xep_carve_array(memory, 1, sizeof *mode->slots[s].counted);
        mode->slots[s].wrong_first = xep_carve_array(memory, 1, sizeof *mode->slots[s].wrong_first);
    }
}

/* ---- kernels ---- */

static const cuda_kernel_name_t kernel_names[CUDA_KERNELS] = {
    [CUDA_PLAN] = {CUDA_IMAGE_PLAN, "xep_cuda_plan"},
    [CUDA_MOVE] = {CUDA_IMAGE_DISPATCH, "xep_cuda_dispatch"},
    [CUDA_MOVE_WITH_ALL] = {CUDA_IMAGE_DISPATCH_WITH_ALL, "xep_cuda_dispatch_with_all"},
    [CUDA_SUM_BF16] = {CUDA_IMAGE_COMBINE, "xep_cuda_combine_bf16"},
    [CUDA_SUM_FP16] = {CUDA_IMAGE_COMBINE, "xep_cuda_combine_fp16"},
    [CUDA_SUM_FP32] = {CUDA_IMAGE_COMBINE, "xep_cuda_combine_fp32"},
    [CUDA_LAYOUT] = {CUDA_IMAGE_LAYOUT, "xep_cuda_layout"},
    [CUDA_SLOTS] = {CUDA_IMAGE_EXPERTS, "xep_cuda_slots"},
    [CUDA_EXPAND] = {CUDA_IMAGE_EXPERTS, "xep_cuda_expand"},
    [CUDA_REDUCE] = {CUDA_IMAGE_EXPERTS, "xep_cuda_reduce"},
    [CUDA_CAST] = {CUDA_IMAGE_CAST, "xep_cuda_cast"},
};

static const char *const waited_for[CUDA_LATE_WORDS] = {
    [CUDA_COUNTS] = "counts",
    [CUDA_ROWS] = "rows",
    [CUDA_OFFERS] = "outputs to combine",
    [CUDA_READERS] = "the end of a combine",
};

/*
 * The plan counts selections in shared memory, two words for each expert, which limits how many there may be. Words
 * begin with what the kernels count from: 0, in a mode that is opened again, too (cuda_mode.h).
 */
static xep_status_t set_up(void *opaque)
{
    cuda_normal_t *mode = opaque;
    const xep_env_t *env = mode->normal.kit.env;
    const xep_shape_t *shape = env->shape;
    uint64_t selections = 2 * (uint64_t)shape->experts * sizeof(uint32_t);
    if (selections > cuda_shared_bytes(&mode->cuda))
        return env->fail(env, NULL, XEP_ERR_UNSUPPORTED, "too many experts: %u (%u with this device)", shape->experts,
                         cuda_shared_bytes(&mode->cuda) / 8);
    for (uint32_t r = 0; r < shape->nranks; r++) mode->normal.records[r] = mode->mirror;
    mode->cuda.words = mode->normal.layout.storing;
    normal_make_factors(mode->normal.factors, shape->nranks);
    return cuda_clear_words(&mode->normal.kit);
}

const cuda_mode_traits_t cuda_mode_traits = {
    .cuda = offsetof(cuda_normal_t, cuda),
    .images = CUDA_NORMAL_IMAGES,
    .kernels = CUDA_KERNELS,
    .kernel_names = kernel_names,
    .layout = CUDA_LAYOUT,
    .late_words = CUDA_LATE_WORDS,
    .waited_for = waited_for,
    .lay_device = lay_device,
    .lay_pinned = lay_pinned,
    .set_up = set_up,
    .check_earlier = cuda_normal_check_refusal,
};

/* ---- the plugin ---- */

static const void *direct_image(void)
{
    return cuda_images[CUDA_IMAGE_DIRECT];
}

const xep_kit_mode_t xep_kit_mode = {
    .mode_bytes = sizeof(cuda_normal_t),
    .layout = offsetof(cuda_normal_t, normal.layout),
    .slot_bytes = sizeof(normal_slot_t),
    .dispatch_steps = cuda_dispatch_steps,
    .combine_steps = cuda_combine_steps,
    .lay_heap = lay_heap,
    .lay_arrays = lay_host,
    .memory = XEP_MEMORY_CUDA,
};

/*
 * A combine ends when all have read the input, so whatever is enqueued behind it may write there: the kit finds every
 * slot drained, since no words of the host are used for it.
 */
__attribute__((visibility("default"))) extern const xep_plugin_t xep_plugin;

const xep_plugin_t xep_plugin = {
    CUDA_MODE_OPS,
    .state_bytes = sizeof(normal_state_t),
    .name = "normal_cuda",
    .brief = "normal for device memory: kernels write and read the devices of all ranks directly",
    .can = XEP_CAN_MASK | XEP_CAN_CAPTURE | XEP_CAN_RETURN_WEIGHTS | XEP_CAN_PAYLOADS,
    .casts = XEP_CASTS,
    .combine_casts = XEP_CASTS | 1u << XEP_QUANT_LOGFMT,
    .arrangements = 1u << XEP_ROWS_BY_RANK,
    .dispatch = cuda_normal_dispatch,
    .combine = cuda_normal_combine,
    .expand = cuda_normal_expand,
    .reduce = cuda_normal_reduce,
    .direct_image = direct_image,
};

_Static_assert(sizeof(xep_cuda_own_words_t) == sizeof(normal_line_t), "lies where the host mode has a line");
