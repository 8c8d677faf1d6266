/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * All peers are connected, and all memory is there, when a buffer is created: the first operations would else pay for
 * it, on every rank at another time.
 */
#include "kit.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "kit_in_place.h"
#include "rows.h"

/*
 * Ranks that call an operation at the same time hear from each other within a microsecond. To list the late ones, read
 * the clock and begin to wait takes 0.3 us, and what is found then is booked. So a call that waits first looks for some
 * two microseconds, unless a rank may be late because this one has its core, or a wire must be driven.
 */
enum { LINE = 64, FIRST_LOOKS = 400 };

/* map() connects. Which ranks are mapped never changes afterwards, so that the fast path may ask all_mapped alone. */
static void connect_all(xep_kit_t *kit)
{
    xep_device_t *device = kit->env->device;
    kit->all_mapped = 1;
    for (uint32_t r = 0; r < kit->shape->nranks; r++) {
        kit->base[r] = device != NULL ? device->ops->map(device, r) : kit->env->wire->ops->map(kit->env->wire, r);
        if (kit->base[r] == NULL) kit->all_mapped = 0;
        kit->hears_in[r] = kit->own;
        kit->pulls[r] = kit->base[r] != NULL && r != kit->shape->rank;
        kit->is_pulled |= kit->pulls[r];
    }
    kit->first_looks = kit->all_mapped && kit->env->wake == NULL ? FIRST_LOOKS : 0;
}

/* The other way round of first_expert: one load for each selection in place of a search. */
static void find_owners(xep_kit_t *kit)
{
    for (uint32_t r = 0; r < kit->shape->nranks; r++)
        for (uint32_t e = kit->first_expert[r]; e < kit->first_expert[r + 1]; e++) kit->owner[e] = r;
}

/* What the kit needs for itself; the mode's arrays come later, as they may need to know who is mapped. */
static void lay_own(xep_kit_t *kit, xep_carve_t *arena)
{
    const xep_shape_t *shape = kit->shape;
    kit->slots = xep_carve_array(arena, shape->slots, xep_kit_mode.slot_bytes);
    kit->base = xep_carve_array(arena, shape->nranks, sizeof *kit->base);
    kit->hears_in = xep_carve_array(arena, shape->nranks, sizeof *kit->hears_in);
    kit->pulls = xep_carve_array(arena, shape->nranks, sizeof *kit->pulls);
    kit->owner = xep_carve_array(arena, shape->experts, sizeof *kit->owner);
    kit->prefaulted = xep_carve_array(arena, shape->slots, sizeof *kit->prefaulted);
    kit->there = xep_carve_array(arena, shape->slots * (uint64_t)shape->nranks, sizeof *kit->there);
    kit->combined = xep_carve_array(arena, shape->slots, sizeof *kit->combined);
    kit->offers = xep_carve_array(arena, shape->nranks, sizeof *kit->offers);
}

static void lay_arrays(xep_kit_t *kit, xep_carve_t *arena)
{
    xep_in_place_lay_arrays(kit, arena);
    xep_kit_mode.lay_arrays(kit, arena);
}

/* Arrays in one block. They are laid twice, to measure and to place: a size written down once cannot differ. */
static xep_status_t get_block(xep_kit_t *kit, void (*lay)(xep_kit_t *, xep_carve_t *), int lazily, void **block_p)
{
    const xep_shape_t *shape = kit->shape;
    xep_carve_t arena = {0};
    lay(kit, &arena);
    if (!arena.overflow) *block_p = calloc(1, arena.end + LINE);
    if (*block_p == NULL)
        return kit->env->fail(kit->env, NULL, XEP_ERR_NO_MEMORY,
                              "no memory for the lists of %u slots, %u ranks, %u experts: %llu bytes", shape->slots,
                              shape->nranks, shape->experts, (unsigned long long)arena.end);
    if (!lazily) memset(*block_p, 0, arena.end); /* its pages are touched here, not by operations */
    arena = (xep_carve_t){.base = (char *)(((uintptr_t)*block_p + LINE - 1) & ~(uintptr_t)(LINE - 1))};
    lay(kit, &arena);
    return XEP_OK;
}

/* The layout is a member of the mode, whose offset the mode has told. */
static xep_heap_layout_t *layout_of(xep_kit_t *kit)
{
    return (xep_heap_layout_t *)(void *)((char *)kit + xep_kit_mode.layout);
}

/*
 * The same functions measure a heap and find their places in it, so that the two cannot differ. Control words come
 * first in their region: where they are does not depend on the lengths of rows.
 */
static xep_status_t lay_heap(const xep_shape_t *shape, xep_heap_layout_t *layout, xep_region_t regions[XEP_REGIONS])
{
    xep_carve_t carve[XEP_REGIONS] = {0};
    /* rows are counted in 32 bits on the wire, tokens and experts are int32_t to the user */
    if (shape->tokens > INT32_MAX || shape->experts > INT32_MAX) return XEP_ERR_INVALID;
    for (int i = 0; i < XEP_REGIONS; i++) carve[i].end = regions[i].offset;
    layout->combine_stride = xep_row_stride((size_t)shape->hidden * shape->combine_elem_bytes);
    layout->combine_line = xep_carve_offset(&carve[XEP_REGION_CONTROL], (uint64_t)shape->slots * shape->nranks,
                                            sizeof(xep_combine_line_t));
    xep_status_t status = xep_kit_mode.lay_heap(shape, layout, carve);
    xep_in_place_lay(shape, &layout->in_place, carve);
    for (int i = 0; i < XEP_REGIONS && status == XEP_OK; i++) {
        if (carve[i].overflow) status = XEP_ERR_NO_MEMORY;
        regions[i].memory = xep_kit_mode.memory;
        regions[i].bytes = carve[i].end - regions[i].offset;
        regions[i].alignment = carve[i].alignment != 0 ? carve[i].alignment : LINE;
    }
    return status;
}

/* A layout is part of a mode, so one that is made for this alone has room for it. */
xep_status_t xep_kit_heap_size(const xep_shape_t *shape, xep_region_t regions[XEP_REGIONS], uint64_t *recv_rows_p)
{
    xep_kit_t *kit = calloc(1, xep_kit_mode.mode_bytes);
    if (kit == NULL) return XEP_ERR_NO_MEMORY;
    xep_status_t status = lay_heap(shape, layout_of(kit), regions);
    if (status == XEP_OK) *recv_rows_p = layout_of(kit)->recv_rows;
    free(kit);
    return status;
}

/* The heap is laid as heap_size has laid it, which has refused what is too large. */
static xep_status_t set_up(xep_kit_t *kit, const xep_env_t *env)
{
    xep_region_t regions[XEP_REGIONS];
    kit->env = env;
    kit->shape = env->shape;
    xep_steps_choose(kit, NULL, 0, NULL);
    kit->layout = layout_of(kit);
    kit->first_expert = env->shape->first_expert;
    memcpy(regions, env->regions, sizeof regions);
    kit->own = (char *)regions[XEP_REGION_ROWS].base - regions[XEP_REGION_ROWS].offset;
    xep_status_t status = lay_heap(env->shape, layout_of(kit), regions);
    if (status == XEP_OK) status = get_block(kit, lay_own, 0, &kit->own_arrays);
    if (status != XEP_OK) return status;
    connect_all(kit);
    find_owners(kit);
    return get_block(kit, lay_arrays, xep_kit_mode.lazily, &kit->arrays);
}

/* Beginning with another peer on each rank, so that they do not all map the same pages at the same time. */
static void prefault_all(const xep_kit_t *kit)
{
    for (uint32_t i = 0; i < kit->shape->nranks && xep_kit_mode.prefault != NULL; i++) {
        uint32_t peer = xep_kit_peer(kit, i);
        if (kit->base[peer] != NULL) xep_kit_mode.prefault(kit, peer);
    }
}

/*
 * A power of two, so that tokens that grow by one with each dispatch do not walk all pages each time. Own pages first:
 * to find those of peers allocated costs less than to allocate them.
 */
void xep_kit_map_slot(xep_kit_t *kit, uint32_t slot, uint64_t tokens)
{
    uint64_t most = 1;
    while (most < tokens) most *= 2;
    if (most > kit->shape->tokens) most = kit->shape->tokens;
    kit->prefaulted[slot] = most;
    for (uint32_t i = 0; i < kit->shape->nranks && xep_kit_mode.prefault_slot != NULL; i++) {
        uint32_t peer = (kit->shape->rank + i) % kit->shape->nranks;
        if (kit->base[peer] == NULL) continue;
        xep_kit_mode.prefault_slot(kit, peer, slot, most);
        xep_in_place_prefault_slot(kit, peer, slot, most);
    }
}

xep_status_t xep_kit_open(const xep_env_t *env, void **mode_p)
{
    xep_kit_t *kit = calloc(1, xep_kit_mode.mode_bytes);
    if (kit == NULL) return env->fail(env, NULL, XEP_ERR_NO_MEMORY, "no memory for the mode");
    xep_status_t status = set_up(kit, env);
    if (status != XEP_OK) {
        xep_kit_close(kit);
        return status;
    }
    prefault_all(kit);
    xep_kit_map_slot(kit, 0, kit->shape->tokens);
    *mode_p = kit;
    return XEP_OK;
}

void *xep_kit_reserve(xep_kit_t *kit, uint64_t count, uint64_t bytes)
{
    uint32_t i = 0;
    while (i < XEP_KIT_RESERVED_MOST && kit->reserved[i] != NULL) i++;
    assert(i < XEP_KIT_RESERVED_MOST);
    return kit->reserved[i] = calloc(count, bytes);
}

void xep_kit_close(void *mode)
{
    xep_kit_t *kit = mode;
    if (kit == NULL) return;
    for (int i = 0; i < XEP_KIT_RESERVED_MOST; i++) free(kit->reserved[i]);
    free(kit->arrays);
    free(kit->own_arrays);
    free(kit);
}

void xep_kit_prefault_received(const xep_kit_t *kit, uint32_t rank, uint32_t slot, uint64_t begin, uint64_t end)
{
    const xep_heap_layout_t *at = kit->layout;
    const xep_area_t areas[] = {at->tokens, at->idx, at->weights, at->beside, at->x};
    for (size_t i = 0; i < sizeof areas / sizeof areas[0]; i++)
        xep_kit_prefault_area(kit, rank, areas[i], slot, begin, end);
}

xep_status_t xep_kit_refuse_expert(const xep_kit_t *kit, xep_op_t *op, uint64_t token, uint32_t k)
{
    const xep_dispatch_args_t *args = op->dispatch;
    const char *row = (const char *)args->topk_idx + token * args->topk_idx_stride;
    return kit->env->fail(kit->env, op, XEP_ERR_INVALID, "invalid topk_idx[%llu][%u]: %lld (-1, or one of %u experts)",
                          (unsigned long long)token, k,
                          (long long)xep_idx_at(row, k, args->topk_idx_dtype == XEP_INT64), kit->shape->experts);
}
