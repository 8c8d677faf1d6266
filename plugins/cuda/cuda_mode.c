/* SPDX-License-Identifier: BSD-3-Clause */

#include "cuda_mode.h"

#include <rows.h>
#include <stdlib.h>

#include "cuda_images.h"

/*
 * Static shared memory of a kernel counts against the same limit as what it is launched with: so much is left for it.
 */
enum { OWN_SHARED_BYTES = 8192 };

/* A mode's struct begins with that of the host mode, so this part is where the mode says. */
cuda_mode_t *cuda_mode_of(void *mode)
{
    return (cuda_mode_t *)(void *)((char *)mode + cuda_mode_traits.cuda);
}

/* ---- memory ---- */

static void lay_device(xep_kit_t *kit, xep_carve_t *memory)
{
    cuda_mode_t *cuda = cuda_mode_of(kit);
    const xep_shape_t *shape = kit->shape;
    cuda->peer = xep_carve_array(memory, shape->nranks, sizeof *cuda->peer);
    cuda->owner = xep_carve_array(memory, shape->experts, sizeof *cuda->owner);
    cuda->first_expert = xep_carve_array(memory, shape->nranks + UINT64_C(1), sizeof *cuda->first_expert);
    cuda->callers = xep_carve_array(memory, shape->experts, sizeof *cuda->callers);
    cuda->numbers = xep_carve_array(memory, shape->experts, sizeof *cuda->numbers);
    cuda->life = xep_carve_array(memory, 1, sizeof *cuda->life);
    cuda->out = xep_carve_array(memory, shape->nranks, sizeof *cuda->out);
    cuda->decided = xep_carve_array(memory, 1, sizeof *cuda->decided);
    cuda->with = xep_carve_array(memory, shape->nranks, sizeof *cuda->with);
    cuda_mode_traits.lay_device(kit, memory);
}

static void lay_pinned(xep_kit_t *kit, xep_carve_t *memory)
{
    cuda_mode_t *cuda = cuda_mode_of(kit);
    cuda->late = xep_carve_array(memory, cuda_mode_traits.late_words, sizeof *cuda->late);
    cuda->stale = xep_carve_array(memory, 1, sizeof *cuda->stale);
    cuda_mode_traits.lay_pinned(kit, memory);
}

/* Measures what carve wants, allocates it, and lets carve place the arrays in it. */
static xep_status_t allocate(xep_kit_t *kit, xep_memory_t memory, void (*carve)(xep_kit_t *, xep_carve_t *),
                             void **memory_p)
{
    xep_device_t *device = cuda_mode_of(kit)->device;
    xep_carve_t measure = {0};
    carve(kit, &measure);
    if (measure.overflow)
        return kit->env->fail(kit->env, NULL, XEP_ERR_NO_MEMORY, "no memory for %u slots", kit->shape->slots);
    xep_status_t status = device->ops->allocate(device, memory, measure.end, memory_p);
    if (status != XEP_OK) return status;
    xep_carve_t place = {.base = *memory_p};
    carve(kit, &place);
    return XEP_OK;
}

/*
 * What is the same for all operations. Copied from memory that is not pinned, so it is waited for: then no operation
 * has to come after it on its stream. Where one copy fails, too: those before it read what is freed next.
 */
static xep_status_t copy_tables(const xep_kit_t *kit, const cuda_mode_t *cuda, const uint32_t *numbers)
{
    const xep_shape_t *shape = kit->shape;
    const struct {
        void *to;
        const void *from;
        size_t bytes;
    } tables[] = {
        {cuda->peer, kit->base, shape->nranks * sizeof *cuda->peer},
        {cuda->owner, kit->owner, shape->experts * sizeof *cuda->owner},
        {cuda->first_expert, kit->first_expert, (shape->nranks + (size_t)1) * sizeof *cuda->first_expert},
        {cuda->callers, shape->expert, shape->experts * sizeof *cuda->callers},
        {cuda->numbers, numbers, shape->experts * sizeof *cuda->numbers},
        {cuda->life, &cuda->number, sizeof *cuda->life},
    };
    xep_status_t status = XEP_OK;
    for (size_t i = 0; i < sizeof tables / sizeof tables[0] && status == XEP_OK; i++)
        status = cuda->device->ops->copy(cuda->device, tables[i].to, tables[i].bytes, tables[i].from, tables[i].bytes,
                                         tables[i].bytes, 1, NULL);
    xep_status_t done = cuda->device->ops->sync(cuda->device);
    return status == XEP_OK ? done : status;
}

/* Where both number experts alike, kernels look into no table. */
static xep_status_t fill_tables(const xep_kit_t *kit, cuda_mode_t *cuda)
{
    const xep_shape_t *shape = kit->shape;
    uint32_t *numbers = malloc(shape->experts * sizeof *numbers), others = 0;
    if (numbers == NULL)
        return kit->env->fail(kit->env, NULL, XEP_ERR_NO_MEMORY, "no memory for %u experts", shape->experts);
    for (uint32_t e = 0; e < shape->experts; e++) {
        numbers[shape->expert[e]] = e;
        others += shape->expert[e] != e;
    }
    xep_status_t status = copy_tables(kit, cuda, numbers);
    if (others == 0) cuda->callers = cuda->numbers = NULL;
    free(numbers);
    return status;
}

/* Waited for: other ranks store words here once all have opened the mode. */
xep_status_t cuda_clear_words(const xep_kit_t *kit)
{
    xep_device_t *device = kit->env->device;
    const xep_region_t *words = &kit->env->regions[XEP_REGION_CONTROL];
    xep_status_t status = device->ops->fill(device, words->base, 0, words->bytes, NULL);
    return status == XEP_OK ? device->ops->sync(device) : status;
}

/* ---- kernels ---- */

/* All are loaded before the first is launched: one that is loaded late would wait for one that waits for it. */
static xep_status_t load_kernels(cuda_mode_t *cuda)
{
    xep_device_t *device = cuda->device;
    xep_status_t status = XEP_OK;
    for (int i = 0; i < cuda_mode_traits.images && status == XEP_OK; i++)
        status = device->ops->load(device, cuda_images[i], &cuda->modules[i]);
    for (int i = 0; i < cuda_mode_traits.kernels && status == XEP_OK; i++) {
        const cuda_kernel_name_t *kernel = &cuda_mode_traits.kernel_names[i];
        status = device->ops->find(device, cuda->modules[kernel->image], kernel->name, cuda_shared_bytes(cuda),
                                   &cuda->kernels[i]);
    }
    return status;
}

uint32_t cuda_shared_bytes(const cuda_mode_t *cuda)
{
    return cuda->device->shared_bytes - OWN_SHARED_BYTES;
}

/*
 * A buffer has as many multiprocessors as its params say, so that the rest is free for what the program computes beside
 * it.
 */
uint32_t cuda_multiprocessors(const xep_kit_t *kit)
{
    uint32_t most = kit->env->multiprocessors, there = kit->env->device->multiprocessors;
    return most < there ? most : there;
}

xep_status_t cuda_launch(const cuda_mode_t *cuda, const xep_op_t *op, int kernel, uint32_t blocks, uint32_t threads,
                         uint32_t bytes, void *args)
{
    const xep_launch_t launch = {cuda->kernels[kernel], blocks, threads, bytes, 0, cuda_stream(op), args};
    return cuda->device->ops->launch(cuda->device, &launch);
}

xep_status_t cuda_launch_after(const cuda_mode_t *cuda, const xep_op_t *op, int kernel, uint32_t blocks,
                               uint32_t threads, uint32_t bytes, void *args)
{
    const xep_launch_t launch = {cuda->kernels[kernel], blocks, threads, bytes, 1, cuda_stream(op), args};
    return cuda->device->ops->launch(cuda->device, &launch);
}

/* The device gives up before the host does (request_wait.c), as it can say who is late. */
xep_cuda_deadline_t cuda_deadline(const cuda_mode_t *cuda, const xep_op_t *op, uint32_t what)
{
    uint64_t ns = op->timeout_ms < 0 ? 0 : (uint64_t)op->timeout_ms * 1000000;
    return (xep_cuda_deadline_t){ns, &cuda->late[what], cuda->device->stop};
}

xep_cuda_life_t cuda_life(const cuda_mode_t *cuda)
{
    return (xep_cuda_life_t){cuda->life, cuda->number, cuda->stale};
}

/* A word in the host's memory is far away: kernels look there first only if there is something to see. */
static uint32_t is_some_gone(const cuda_mode_t *cuda, uint32_t nranks)
{
    for (uint32_t r = 0; r < nranks; r++)
        if (__atomic_load_n(&cuda->device->gone[r], __ATOMIC_ACQUIRE) != 0) return 1;
    return 0;
}

xep_cuda_outs_t cuda_outs(const cuda_mode_t *cuda, uint32_t nranks)
{
    if (cuda->device->gone == NULL) return (xep_cuda_outs_t){0};
    return (xep_cuda_outs_t){
        .gone = cuda->device->gone,
        .left = cuda->device->left,
        .out = cuda->out,
        .with = cuda->with,
        .decided = cuda->decided,
        .words = cuda->words,
        .some_gone = is_some_gone(cuda, nranks),
    };
}

/* ---- operations ---- */

/* Of the measured choices, those that fill the links with the fewest multiprocessors (contrib/check-cuda.sh). */
enum {
    PULLING = 24,   /* warps that pull what bulk copies can move */
    PLAIN = 32,     /* warps that pull what they cannot */
    MOST_ROWS = 32, /* of a token, that a warp pulls at once: a lane each */
};

/* Bulk copies take multiples of 16 bytes at multiples of 16. */
uint32_t cuda_lay_sums(const xep_combine_args_t *args, uint32_t blocks, uint32_t contributions, uint32_t chunk,
                       uint32_t most_warps, uint32_t room, uintptr_t odd, xep_cuda_sum_t *sum)
{
    const uint32_t bytes = (uint32_t)xep_combine_row_bytes(args) & ~15u;
    sum->hidden = args->hidden;
    sum->out = args->out;
    sum->out_stride = args->out_stride;
    sum->rows = contributions;
    odd |= (uintptr_t)args->out | args->out_stride;
    for (int b = 0; b < 2; b++) {
        sum->bias[b] = args->bias[b];
        sum->bias_stride[b] = args->bias_stride[b];
        if (args->bias[b] == NULL) continue;
        sum->rows++;
        odd |= (uintptr_t)args->bias[b] | args->bias_stride[b];
    }
    sum->chunk = (uint32_t)xep_least(bytes, chunk);
    sum->stages = odd % 16 == 0 && bytes != 0 && sum->rows <= MOST_ROWS;
    sum->warps = (uint32_t)xep_least(sum->stages ? PULLING : PLAIN, most_warps);
    if (sum->stages) sum->stages = xep_cuda_sum_stages(sum, sum->warps, blocks, room);
    /* fewer warps where their stages have no room together; without stages they need none */
    while (sum->warps > 1 && sum->warps * sum->stages * xep_cuda_stage_bytes(sum) > room) sum->warps--;
    return sum->warps * sum->stages * xep_cuda_stage_bytes(sum);
}

xep_status_t cuda_check_arrays(const cuda_mode_t *cuda, const cuda_array_t *arrays, size_t count)
{
    xep_status_t status = XEP_OK;
    for (size_t i = 0; i < count && status == XEP_OK; i++)
        status = cuda->device->ops->check(cuda->device, arrays[i].name, arrays[i].address);
    return status;
}

/*
 * A kernel that has failed is found by the next call that looks here, not by the one that enqueued it: nobody waited
 * for it. The words are not cleared: ranks have lost step, so all later operations fail, until a reset opens the mode
 * anew.
 */
xep_status_t cuda_check_earlier(void *mode, xep_op_t *op)
{
    const xep_kit_t *kit = mode;
    const cuda_mode_t *cuda = cuda_mode_of(mode);
    if (__atomic_load_n(cuda->stale, __ATOMIC_ACQUIRE) != 0)
        return kit->env->fail(kit->env, op, XEP_ERR_PROTOCOL,
                              "a CUDA graph from before a reset was launched, and did nothing (capture it anew)");
    for (uint32_t i = 0; i < cuda_mode_traits.late_words; i++) {
        uint32_t rank = __atomic_load_n(&cuda->late[i], __ATOMIC_ACQUIRE);
        if (rank == 0) continue;
        if (cuda_mode_traits.waited_for[i] == NULL)
            return kit->env->fail(kit->env, op, XEP_ERR_PROTOCOL,
                                  "ranks disagreed in an earlier combine: rank %u and one before it (the same dtype, "
                                  "hidden, flags, topk_weights and call)",
                                  rank - 1);
        return kit->env->fail(kit->env, op, XEP_ERR_TIMEOUT, "a kernel has waited too long for %s: rank %u",
                              cuda_mode_traits.waited_for[i], rank - 1);
    }
    return cuda_mode_traits.check_earlier == NULL ? XEP_OK : cuda_mode_traits.check_earlier(mode, op);
}

/* ---- open and close ---- */

static xep_status_t open_parts(xep_kit_t *kit)
{
    cuda_mode_t *cuda = cuda_mode_of(kit);
    cuda->device = kit->env->device;
    cuda->number = kit->env->now_ns(kit->env);
    xep_status_t status = allocate(kit, XEP_MEMORY_CUDA, lay_device, &cuda->memory);
    if (status == XEP_OK) status = allocate(kit, XEP_MEMORY_HOST, lay_pinned, &cuda->pinned);
    if (status == XEP_OK) status = fill_tables(kit, cuda);
    if (status == XEP_OK) status = load_kernels(cuda);
    return status == XEP_OK ? cuda_mode_traits.set_up(kit) : status;
}

/* The kit makes the mode's struct, with zeros in it: what was not made before a failure is NULL. */
xep_status_t cuda_mode_open(const xep_env_t *env, void **mode_p)
{
    void *mode;
    xep_status_t status = xep_kit_open(env, &mode);
    if (status != XEP_OK) return status;
    status = open_parts(mode);
    if (status == XEP_OK) *mode_p = mode;
    else cuda_mode_close(mode);
    return status;
}

void cuda_mode_close(void *mode)
{
    if (mode == NULL) return;
    cuda_mode_t *cuda = cuda_mode_of(mode);
    for (int i = 0; i < cuda_mode_traits.images && cuda->device != NULL; i++)
        cuda->device->ops->unload(cuda->device, cuda->modules[i]);
    if (cuda->device != NULL) {
        cuda->device->ops->release(cuda->device, XEP_MEMORY_CUDA, cuda->memory);
        cuda->device->ops->release(cuda->device, XEP_MEMORY_HOST, cuda->pinned);
    }
    xep_kit_close(mode);
}
