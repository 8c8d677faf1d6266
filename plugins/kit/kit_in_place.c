/* SPDX-License-Identifier: BSD-3-Clause */

/* Rows that are read in place: which memory of this rank they may be in, and who has released them. */
#include "kit_in_place.h"

#include <string.h>

#include "kit.h"

static char *begin_of(const xep_kit_t *kit, uint32_t area)
{
    return xep_kit_own(kit, kit->layout->in_place.first + area * kit->layout->in_place.bytes);
}

static xep_in_place_read_t *read_of(const xep_kit_t *kit, uint32_t slot, uint32_t rank)
{
    return &kit->in_place->reads[(size_t)slot * kit->shape->nranks + rank];
}

static uint64_t released_offset(const xep_kit_t *kit, uint64_t area, uint32_t rank)
{
    return kit->layout->in_place.released + (area * kit->shape->nranks + rank) * sizeof(uint64_t);
}

/* The acquire is for what the user writes there next: it comes after all that peers have read. */
static int is_released(const xep_kit_t *kit, uint32_t area)
{
    const _Atomic uint64_t *words = xep_kit_own(kit, released_offset(kit, area, 0));
    for (uint32_t r = 0; r < kit->shape->nranks; r++)
        if (kit->base[r] != NULL && atomic_load_explicit(&words[r], memory_order_acquire) < kit->in_place->epochs[area])
            return 0;
    return 1;
}

/* one that is released, and not the user's to write; or XEP_NO_AREA */
static uint32_t find_area(const xep_kit_t *kit)
{
    for (uint32_t a = 0; a < kit->layout->in_place.areas; a++)
        if (a != kit->in_place->handed && is_released(kit, a)) return a;
    return XEP_NO_AREA;
}

/* ---- memory ---- */

/* One area more than there are handles, so that one can be written while all slots have rows in place. */
void xep_in_place_lay(const xep_shape_t *shape, xep_in_place_layout_t *at, xep_carve_t *region)
{
    xep_carve_t *rows = &region[XEP_REGION_ROWS], area = {0};
    at->areas = shape->sends_in_place ? shape->slots + UINT64_C(1) : 0;
    if (at->areas == 0) return;
    xep_carve_offset(&area, shape->tokens, at->stride);
    xep_carve_page(&area);
    /* rows_at is a number of 32 bits */
    rows->overflow |= area.overflow || at->areas >= UINT32_MAX / shape->tokens;
    at->bytes = area.end;
    xep_carve_page(rows);
    at->first = xep_carve_offset(rows, at->areas, at->bytes);
    at->released = xep_carve_offset(&region[XEP_REGION_CONTROL], at->areas * shape->nranks, sizeof(uint64_t));
}

void xep_in_place_lay_arrays(xep_kit_t *kit, xep_carve_t *arena)
{
    const uint64_t areas = kit->layout->in_place.areas;
    if (areas == 0) return;
    xep_in_place_t measured, *in_place = xep_carve_array(arena, 1, sizeof *in_place);
    if (in_place == NULL) in_place = &measured;
    *in_place = (xep_in_place_t){.epochs = xep_carve_array(arena, areas, sizeof *in_place->epochs),
                                 .reads = xep_carve_array(arena, kit->shape->slots * (uint64_t)kit->shape->nranks,
                                                          sizeof *in_place->reads),
                                 .handed = XEP_NO_AREA};
    if (arena->base != NULL) kit->in_place = in_place;
}

/*
 * Receivers read all over the memory of others, since the tokens they get have gaps between them. A rank that has one
 * handle at a time uses two areas: the second while the first is still read. With 8 ranks of 512 tokens a rank met
 * 17,000 pages in its first operations, 2 us each. Of this rank all are present with slot 0.
 */
void xep_in_place_prefault_slot(const xep_kit_t *kit, uint32_t rank, uint32_t slot, uint64_t tokens)
{
    const xep_in_place_layout_t *at = &kit->layout->in_place;
    if (at->areas == 0 || !kit->shape->sends[rank]) return;
    if (rank == kit->shape->rank) {
        if (slot == 0) xep_kit_prefault(kit, rank, at->first, at->first + at->areas * at->bytes);
        return;
    }
    for (uint64_t area = slot == 0 ? 0 : slot + UINT64_C(1); area <= slot + UINT64_C(1); area++) {
        uint64_t begin = at->first + area * at->bytes;
        xep_kit_prefault(kit, rank, begin, begin + tokens * at->stride);
    }
}

/* ---- where rows are ---- */

/* The user's rows, in the memory that was handed out: from which row on. */
static xep_status_t check_rows(const xep_kit_t *kit, xep_op_t *op, uint64_t *first_p)
{
    const xep_env_t *env = kit->env;
    const xep_dispatch_args_t *args = op->dispatch;
    const xep_in_place_layout_t *at = &kit->layout->in_place;
    uint64_t offset = kit->in_place->handed == XEP_NO_AREA
                          ? 0
                          : (uint64_t)((const char *)args->x - begin_of(kit, kit->in_place->handed));
    *first_p = offset / at->stride;
    if (kit->in_place->handed == XEP_NO_AREA || offset >= at->bytes || offset % at->stride != 0 ||
        *first_p + args->tokens > kit->shape->tokens)
        return env->fail(env, op, XEP_ERR_INVALID,
                         "invalid x: %p, %llu rows (rows of the memory that xep_buffer_send_memory() returned "
                         "since the last dispatch from there, or memory that is not the buffer's)",
                         args->x, (unsigned long long)args->tokens);
    if (args->tokens > 1 && args->x_stride != at->stride)
        return env->fail(env, op, XEP_ERR_INVALID, "invalid x_stride: %zu (%llu, as xep_buffer_send_memory() returned)",
                         args->x_stride, (unsigned long long)at->stride);
    return XEP_OK;
}

/* Whether any of the rows lies in any area. */
static int is_in_areas(const xep_kit_t *kit, const xep_dispatch_args_t *args)
{
    uintptr_t begin = (uintptr_t)args->x, end = begin + (args->tokens - 1) * args->x_stride + 1;
    uintptr_t areas = (uintptr_t)begin_of(kit, 0);
    return begin < areas + kit->layout->in_place.areas * kit->layout->in_place.bytes && end > areas;
}

/* Of rows that are cast the user keeps the originals. */
xep_status_t xep_in_place_choose(const xep_kit_t *kit, xep_op_t *op)
{
    const xep_dispatch_args_t *args = op->dispatch;
    xep_in_place_rows_t *rows = &xep_kit_state(op)->in_place;
    uint64_t first = 0;
    memset(read_of(kit, op->slot, 0), 0, kit->shape->nranks * sizeof(xep_in_place_read_t));
    if ((args->flags & XEP_DISPATCH_IN_PLACE) == 0 || args->tokens == 0) return XEP_OK;
    int is_inside = is_in_areas(kit, args), stays = is_inside && args->quant == XEP_QUANT_NONE;
    xep_status_t status = is_inside ? check_rows(kit, op, &first) : XEP_OK;
    if (status != XEP_OK) return status;
    rows->area = stays ? kit->in_place->handed : find_area(kit);
    if (rows->area == XEP_NO_AREA) return XEP_OK;
    rows->fill = stays ? NULL : begin_of(kit, rows->area);
    rows->rows_at = (uint32_t)(1 + rows->area * kit->shape->tokens + (stays ? first : 0));
    return XEP_OK;
}

xep_status_t xep_in_place_take(void *mode, xep_op_t *op)
{
    const xep_kit_t *kit = mode;
    const xep_in_place_rows_t *rows = &xep_kit_state(op)->in_place;
    if (rows->rows_at == 0) return XEP_OK;
    kit->in_place->epochs[rows->area] = op->epoch;
    if (rows->area == kit->in_place->handed) kit->in_place->handed = XEP_NO_AREA;
    return XEP_OK;
}

/* What the user wrote there stays there, so that the same call with room succeeds. */
xep_status_t xep_in_place_return(void *mode, xep_op_t *op)
{
    const xep_kit_t *kit = mode;
    const xep_in_place_rows_t *rows = &xep_kit_state(op)->in_place;
    if (xep_kit_state(op)->verdict == XEP_OK || rows->rows_at == 0) return XEP_OK;
    kit->in_place->epochs[rows->area] = 0;
    if (rows->fill == NULL && kit->in_place->handed == XEP_NO_AREA) kit->in_place->handed = rows->area;
    return XEP_OK;
}

/* ---- where they are read ---- */

int xep_in_place_is_sane(const xep_kit_t *kit, uint64_t rows_at, uint64_t tokens)
{
    const uint64_t room = kit->shape->tokens;
    return rows_at == 0 ||
           ((rows_at - 1) / room < kit->layout->in_place.areas && (rows_at - 1) % room + tokens <= room);
}

char *xep_in_place_rows(const xep_kit_t *kit, uint32_t rank, uint64_t rows_at)
{
    const xep_in_place_layout_t *at = &kit->layout->in_place;
    const uint64_t number = rows_at - 1, room = kit->shape->tokens;
    return kit->base[rank] + at->first + number / room * at->bytes + number % room * at->stride;
}

void xep_in_place_read(const xep_kit_t *kit, const xep_op_t *op, uint32_t rank, uint64_t rows_at)
{
    *read_of(kit, op->slot, rank) = (xep_in_place_read_t){.epoch = op->epoch, .rows_at = (uint32_t)rows_at};
}

/*
 * Behind all that the user has read: the word is stored with release. Once for each dispatch, with its epoch: the
 * memory may belong to a later one by then.
 */
static void release(void *mode, uint32_t slot)
{
    const xep_kit_t *kit = mode;
    for (uint32_t r = 0; r < kit->shape->nranks; r++) {
        xep_in_place_read_t *read = read_of(kit, slot, r);
        if (read->rows_at == 0) continue;
        xep_kit_signal(kit, r, released_offset(kit, (read->rows_at - 1) / kit->shape->tokens, kit->shape->rank),
                       read->epoch);
        read->rows_at = 0;
    }
}

/* ---- what the user writes ---- */

static xep_status_t find_memory(void *mode, void **base_p, size_t *stride_p)
{
    const xep_kit_t *kit = mode;
    if (kit->in_place->handed == XEP_NO_AREA) {
        uint32_t area = find_area(kit);
        if (area == XEP_NO_AREA) return XEP_INPROGRESS;
        kit->in_place->handed = area;
    }
    *base_p = begin_of(kit, kit->in_place->handed);
    *stride_p = kit->layout->in_place.stride;
    return XEP_OK;
}

const xep_place_ops_t xep_kit_places = {.memory = find_memory, .release = release};
