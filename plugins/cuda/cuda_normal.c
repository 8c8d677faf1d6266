/* SPDX-License-Identifier: BSD-3-Clause */

/* The plugin: its memory on both sides, its kernels, its name. */
#include "cuda_normal.h"

#include <stdlib.h>
#include <string.h>

#include "cuda_images.h"

/* ---- memory ---- */

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
    normal_t *mode = opaque;
    const xep_shape_t *shape = mode->kit.shape;
    mode->factors = xep_carve_array(arena, shape->nranks, sizeof *mode->factors);
    for (uint32_t s = 0; s < shape->slots; s++) {
        normal_slot_t *slot = normal_slot(mode, s);
        lay_routing(mode, arena, &slot->own);
        slot->from = xep_carve_array(arena, shape->nranks, sizeof *slot->from);
        slot->expert_rows = xep_carve_array(arena, shape->local_experts, sizeof *slot->expert_rows);
    }
}

/*
 * Arrays of kernels, in one allocation. Carved twice, first to measure and then to place: so this must not depend on
 * what it has set.
 */
static void lay_device(cuda_normal_t *mode, xep_carve_t *memory)
{
    const xep_shape_t *shape = mode->normal.kit.shape;
    uint64_t ranks = shape->nranks, segments = (shape->tokens + 31) / 32;
    mode->peer = xep_carve_array(memory, ranks, sizeof *mode->peer);
    mode->owner = xep_carve_array(memory, shape->experts, sizeof *mode->owner);
    mode->first_expert = xep_carve_array(memory, ranks + 1, sizeof *mode->first_expert);
    mode->scratch = xep_carve_array(memory, 2 * segments * ranks, sizeof *mode->scratch);
    mode->blocks_done = xep_carve_array(memory, 1, sizeof *mode->blocks_done);
    mode->wrong = xep_carve_array(memory, 1, sizeof *mode->wrong);
    mode->verdict = xep_carve_array(memory, 1, sizeof *mode->verdict);
    for (uint32_t s = 0; s < shape->slots; s++) {
        cuda_routing_t *routing = &mode->routings[s];
        routing->dest = xep_carve_array(memory, shape->tokens * mode->normal.layout.max_dests, sizeof *routing->dest);
        routing->chosen = xep_carve_array(memory, shape->tokens * shape->topk, sizeof *routing->chosen);
        routing->rows = xep_carve_array(memory, ranks, sizeof *routing->rows);
        routing->selections = xep_carve_array(memory, shape->experts, sizeof *routing->selections);
        routing->rank_rows = xep_carve_array(memory, ranks * ranks, sizeof *routing->rank_rows);
        mode->slots[s].there = xep_carve_array(memory, ranks, sizeof *mode->slots[s].there);
    }
}

/* What kernels write and the host reads while they run. Each word has one writer, the device; the host clears none. */
static void lay_pinned(cuda_normal_t *mode, xep_carve_t *memory)
{
    const xep_shape_t *shape = mode->normal.kit.shape;
    mode->mirror = xep_carve_array(memory, (uint64_t)shape->slots * shape->nranks, mode->normal.layout.record_bytes);
    mode->late = xep_carve_array(memory, CUDA_LATE_WORDS, sizeof *mode->late);
    for (uint32_t s = 0; s < shape->slots; s++) {
        mode->slots[s].counted = xep_carve_array(memory, 1, sizeof *mode->slots[s].counted);
        mode->slots[s].wrong_first = xep_carve_array(memory, 1, sizeof *mode->slots[s].wrong_first);
    }
}

/* Measures what carve wants, allocates it, and lets carve place the arrays in it. */
static xep_status_t allocate(cuda_normal_t *mode, xep_memory_t memory, void (*carve)(cuda_normal_t *, xep_carve_t *),
                             void **memory_p)
{
    xep_carve_t measure = {0};
    carve(mode, &measure);
    if (measure.overflow)
        return mode->normal.kit.env->fail(mode->normal.kit.env, NULL, XEP_ERR_NO_MEMORY, "no memory for %u slots",
                                          mode->normal.kit.shape->slots);
    xep_status_t status = mode->device->ops->allocate(mode->device, memory, measure.end, memory_p);
    if (status != XEP_OK) return status;
    xep_carve_t place = {.base = *memory_p};
    carve(mode, &place);
    return XEP_OK;
}

/*
 * What is the same for all operations. Copied from memory that is not pinned, so it is waited for: then no operation
 * has to come after it on its stream.
 */
static xep_status_t fill_tables(cuda_normal_t *mode)
{
    const xep_kit_t *kit = &mode->normal.kit;
    const struct {
        void *to;
        const void *from;
        size_t bytes;
    } tables[] = {
        {mode->peer, kit->base, kit->shape->nranks * sizeof *mode->peer},
        {mode->owner, kit->owner, kit->shape->experts * sizeof *mode->owner},
        {mode->first_expert, kit->first_expert, (kit->shape->nranks + (size_t)1) * sizeof *mode->first_expert},
    };
    xep_status_t status = XEP_OK;
    for (size_t i = 0; i < sizeof tables / sizeof tables[0] && status == XEP_OK; i++)
        status = mode->device->ops->copy(mode->device, tables[i].to, tables[i].bytes, tables[i].from, tables[i].bytes,
                                         tables[i].bytes, 1, NULL);
    return status == XEP_OK ? mode->device->ops->sync(mode->device) : status;
}

/* ---- kernels ---- */

static const struct {
    int image; /* which has it */
    const char *name;
} kernels[CUDA_KERNELS] = {
    [CUDA_PLAN] = {CUDA_IMAGE_PLAN, "xep_cuda_plan"},
    [CUDA_EXCHANGE] = {CUDA_IMAGE_COUNTS, "xep_cuda_counts"},
    [CUDA_MOVE] = {CUDA_IMAGE_DISPATCH, "xep_cuda_dispatch"},
    [CUDA_SUM_BF16] = {CUDA_IMAGE_COMBINE, "xep_cuda_combine_bf16"},
    [CUDA_SUM_FP16] = {CUDA_IMAGE_COMBINE, "xep_cuda_combine_fp16"},
    [CUDA_SUM_FP32] = {CUDA_IMAGE_COMBINE, "xep_cuda_combine_fp32"},
};

/*
 * Static shared memory of a kernel counts against the same limit as what it is launched with: so much is left for it.
 */
enum { OWN_SHARED_BYTES = 8192 };

uint32_t cuda_shared_bytes(const cuda_normal_t *mode)
{
    return mode->device->shared_bytes - OWN_SHARED_BYTES;
}

/* All are loaded before the first is launched: one that is loaded late would wait for one that waits for it. */
static xep_status_t load_kernels(cuda_normal_t *mode)
{
    xep_device_t *device = mode->device;
    xep_status_t status = XEP_OK;
    for (int i = 0; i < CUDA_IMAGES && status == XEP_OK; i++)
        status = device->ops->load(device, cuda_images[i], &mode->modules[i]);
    for (int i = 0; i < CUDA_KERNELS && status == XEP_OK; i++)
        status = device->ops->find(device, mode->modules[kernels[i].image], kernels[i].name, cuda_shared_bytes(mode),
                                   &mode->kernels[i]);
    return status;
}

/*
 * A buffer has as many multiprocessors as its params say, so that the rest is free for what the program computes beside
 * it.
 */
xep_status_t cuda_launch(const cuda_normal_t *mode, const xep_op_t *op, cuda_kernel_t kernel, uint32_t blocks,
                         uint32_t threads, uint32_t bytes, void *args)
{
    uint32_t most = mode->normal.kit.env->threads, there = mode->device->multiprocessors;
    if (blocks == 0) blocks = most < there ? most : there;
    const xep_launch_t launch = {mode->kernels[kernel], blocks, threads, bytes, cuda_stream(op), args};
    return mode->device->ops->launch(mode->device, &launch);
}

/* The device gives up a little before the host does, as it can say who is late. */
xep_cuda_deadline_t cuda_deadline(const cuda_normal_t *mode, const xep_op_t *op, cuda_late_t what)
{
    uint64_t ns = op->timeout_ms < 0 ? 0 : (uint64_t)op->timeout_ms * 1000000 / 8 * 7;
    return (xep_cuda_deadline_t){ns, &mode->late[what], mode->device->stop};
}

static const char *const waited_for[CUDA_LATE_WORDS] = {
    [CUDA_COUNTS] = "counts",
    [CUDA_ROWS] = "rows",
    [CUDA_OFFERS] = "outputs to combine",
    [CUDA_READERS] = "the end of a combine",
};

/*
 * A kernel that has failed is found by the next call that looks here, not by the one that enqueued it: nobody waited
 * for it. The words are not cleared: ranks have lost step, so all later operations fail, until a reset opens the mode
 * anew.
 */
xep_status_t cuda_check_earlier(void *opaque, xep_op_t *op)
{
    const cuda_normal_t *mode = opaque;
    const xep_env_t *env = mode->normal.kit.env;
    for (int i = 0; i < CUDA_LATE_WORDS; i++) {
        uint32_t rank = __atomic_load_n(&mode->late[i], __ATOMIC_ACQUIRE);
        if (rank == 0) continue;
        if (i == CUDA_DIFFERS)
            return env->fail(env, op, XEP_ERR_PROTOCOL,
                             "rank %u and one before it disagreed on dtype, hidden or "
                             "topk_weights of a combine",
                             rank - 1);
        return env->fail(env, op, XEP_ERR_TIMEOUT, "a kernel waited too long for %s: rank %u did not come",
                         waited_for[i], rank - 1);
    }
    return XEP_OK;
}

/* ---- the plugin ---- */

/*
 * Also after set_up() has failed half way: what was not made is NULL, and to free that is nothing. The core has seen to
 * it that no kernel of this buffer runs any more.
 */
static void cuda_close(void *opaque)
{
    cuda_normal_t *mode = opaque;
    if (mode == NULL) return;
    for (int i = 0; i < CUDA_IMAGES; i++) mode->device->ops->unload(mode->device, mode->modules[i]);
    mode->device->ops->release(mode->device, XEP_MEMORY_CUDA, mode->memory);
    mode->device->ops->release(mode->device, XEP_MEMORY_HOST, mode->pinned);
    free(mode->slots);
    free(mode->routings);
    xep_kit_close(mode);
}

const xep_kit_mode_t xep_kit_mode = {
    .mode_bytes = sizeof(cuda_normal_t),
    .layout = offsetof(cuda_normal_t, normal.layout),
    .slot_bytes = sizeof(normal_slot_t),
    .dispatch_steps = cuda_dispatch_steps,
    .combine_steps = cuda_combine_steps,
    .lay_heap = normal_lay_heap,
    .lay_arrays = lay_host,
    .memory = XEP_MEMORY_CUDA,
};

/* The plan counts selections in shared memory, two words for each expert, which limits how many there may be. */
static xep_status_t set_up(cuda_normal_t *mode)
{
    const xep_env_t *env = mode->normal.kit.env;
    const xep_shape_t *shape = env->shape;
    uint64_t selections = 2 * (uint64_t)shape->experts * sizeof(uint32_t);
    if (selections > cuda_shared_bytes(mode))
        return env->fail(env, NULL, XEP_ERR_UNSUPPORTED, "too many experts: %u (%u with this device)", shape->experts,
                         cuda_shared_bytes(mode) / 8);
    mode->routings = calloc(shape->slots, sizeof *mode->routings);
    mode->slots = calloc(shape->slots, sizeof *mode->slots);
    if (mode->routings == NULL || mode->slots == NULL)
        return env->fail(env, NULL, XEP_ERR_NO_MEMORY, "no memory for %u slots", shape->slots);
    xep_status_t status = allocate(mode, XEP_MEMORY_CUDA, lay_device, &mode->memory);
    if (status == XEP_OK) status = allocate(mode, XEP_MEMORY_HOST, lay_pinned, &mode->pinned);
    mode->normal.records = mode->mirror;
    normal_make_factors(mode->normal.factors, shape->nranks);
    if (status == XEP_OK) status = fill_tables(mode);
    return status == XEP_OK ? load_kernels(mode) : status;
}

/* The kit opens what all modes have, with this mode's struct around it; from then on cuda_close() ends all of it. */
static xep_status_t cuda_open(const xep_env_t *env, void **mode_p)
{
    void *opaque;
    xep_status_t status = xep_kit_open(env, &opaque);
    if (status != XEP_OK) return status;
    cuda_normal_t *mode = opaque;
    mode->device = env->device;
    status = set_up(mode);
    if (status == XEP_OK) *mode_p = mode;
    else cuda_close(mode);
    return status;
}

/*
 * A combine ends when all have read the input, so whatever is enqueued behind it may write there: the kit finds every
 * slot drained, since no words of the host are used for it.
 */
__attribute__((visibility("default"))) extern const xep_plugin_t xep_plugin;

const xep_plugin_t xep_plugin = {
    XEP_PLUGIN_SIZES,
    XEP_KIT_OPS,
    .state_bytes = sizeof(normal_state_t),
    .name = "normal_cuda",
    .brief = "normal for device memory: kernels write and read the devices of all ranks directly",
    .open = cuda_open,
    .close = cuda_close,
    .dispatch = cuda_normal_dispatch,
    .combine = cuda_normal_combine,
};
