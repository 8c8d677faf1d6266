/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Each rank of a host may find room for its heap although there is none for all: segments are granted before they are
 * touched, and all check /dev/shm before one of them writes. So in the first exchange of a buffer, before there is any
 * heap, every rank says what it would draw from and how much is free there, and all see the same numbers.
 */
#include "buffer_agree.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "text.h"

void xep_room_view(xep_transport_t *transport, uint64_t bytes, uint32_t here, xep_room_view_t *view)
{
    memset(view, 0, sizeof *view);
    view->heaps = here;
    xep_room_see_space(&view->space);
    xep_room_see("", &view->room);
    transport->ops->shared_room(transport, bytes, view->shared);
}

/* ---- what ranks draw from ---- */

/* Ranks that draw from the same have the same id. */
typedef struct draw {
    uint64_t id[2];
    uint32_t rank, source; /* XEP_ROOM_* */
    uint64_t bytes;        /* of memory */
    const xep_shared_room_t *shared;
} draw_t;

static int compare_ids(const draw_t *x, const draw_t *y)
{
    for (int i = 0; i < 2; i++)
        if (x->id[i] != y->id[i]) return x->id[i] < y->id[i] ? -1 : 1;
    return 0;
}

static int compare_draws(const void *a, const void *b)
{
    const draw_t *x = a, *y = b;
    const int order = compare_ids(x, y);
    return order != 0 ? order : (x->rank > y->rank) - (x->rank < y->rank);
}

typedef xep_status_t (*check_fn)(const draw_t *draws, size_t count, uint64_t bytes);

/* Those that draw from the same together, by rank. */
static xep_status_t check_each(draw_t *draws, size_t count, uint64_t bytes, check_fn check)
{
    xep_status_t status = XEP_OK;
    size_t begin = 0;
    qsort(draws, count, sizeof *draws, compare_draws);
    for (size_t i = 1; i <= count && status == XEP_OK; i++) {
        if (i < count && compare_ids(&draws[i], &draws[begin]) == 0) continue;
        status = check(&draws[begin], i - begin, bytes);
        begin = i;
    }
    return status;
}

/* ---- memory ---- */

static const char *name_source(uint32_t source)
{
    if (source == XEP_ROOM_MACHINE) return "of the machine";
    return source == XEP_ROOM_PROMISE ? "that the machine would promise" : "of the control group";
}

/* Ranks look at slightly different times: takes the least that one has seen. */
static xep_status_t check_source(const draw_t *draws, size_t count, uint64_t bytes)
{
    uint64_t least = UINT64_MAX;
    for (size_t i = 0; i < count; i++)
        if (draws[i].bytes < least) least = draws[i].bytes;
    if (bytes == 0 || least / bytes >= count || least / bytes == 0) return XEP_OK;
    char each[XEP_UNITS_BYTES], all[XEP_UNITS_BYTES], left[XEP_UNITS_BYTES];
    return xep_fail(XEP_ERR_NO_MEMORY,
                    "not enough memory for %zu ranks of one host, from rank %u on: each needs %s, all together %s "
                    "(%s are free %s)",
                    count, draws[0].rank, xep_units_of(bytes, each), xep_units_of(bytes * count, all),
                    xep_units_of(least, left), name_source(draws[0].source));
}

/* A machine's memory and what it may promise are different sources. */
static xep_status_t check_memory(const xep_room_view_t *views, uint32_t nranks, uint64_t bytes, draw_t *draws)
{
    size_t count = 0;
    for (uint32_t r = 0; r < nranks; r++)
        for (uint32_t i = 0; i < XEP_ROOM_SOURCES; i++) {
            const xep_room_source_t *source = &views[r].room.source[i];
            if (source->id != 0 && source->bytes != UINT64_MAX)
                draws[count++] = (draw_t){{source->id, i == XEP_ROOM_PROMISE}, r, i, source->bytes, NULL};
        }
    return check_each(draws, count, bytes, check_source);
}

/* ---- shared memory: a rank's heap may be of either kind, whichever has room ---- */

static xep_status_t check_kinds(const draw_t *draws, size_t count, uint64_t bytes)
{
    xep_shared_room_t least[XEP_SHARED_KINDS];
    memcpy(least, draws[0].shared, sizeof least);
    for (size_t i = 1; i < count; i++)
        for (int kind = 0; kind < XEP_SHARED_KINDS; kind++)
            if (draws[i].shared[kind].heaps < least[kind].heaps) least[kind] = draws[i].shared[kind];
    uint64_t heaps = least[XEP_SHARED_SYSV].heaps, posix = least[XEP_SHARED_POSIX].heaps;
    if (heaps == 0 && posix == 0) return XEP_OK; /* nor does one alone, or none are asked for */
    if (heaps >= count || posix >= count - heaps) return XEP_OK;
    char each[XEP_UNITS_BYTES], all[XEP_UNITS_BYTES], segments[XEP_UNITS_BYTES], files[XEP_UNITS_BYTES];
    return xep_fail(XEP_ERR_NO_MEMORY,
                    "not enough shared memory for %zu ranks of one host, from rank %u on: each needs %s, all together "
                    "%s (System V segments: %s free, room for %" PRIu64 "; /dev/shm: %s free, room for %" PRIu64 ")",
                    count, draws[0].rank, xep_units_of(bytes, each), xep_units_of(bytes * count, all),
                    xep_units_of(least[XEP_SHARED_SYSV].bytes, segments), heaps,
                    xep_units_of(least[XEP_SHARED_POSIX].bytes, files), posix);
}

static xep_status_t check_shared(const xep_room_view_t *views, uint32_t nranks, uint64_t bytes, draw_t *draws)
{
    for (uint32_t r = 0; r < nranks; r++)
        draws[r] = (draw_t){.id = {views[r].shared[0].id, views[r].shared[1].id}, .rank = r, .shared = views[r].shared};
    return check_each(draws, nranks, bytes, check_kinds);
}
_Static_assert(XEP_SHARED_KINDS == 2 && XEP_ROOM_SOURCES >= 1, "an id for both, and room for a draw of each rank");

/* ---- addresses ---- */

enum {
    SPARE_BYTES = 32 << 20, /* for what else a buffer takes, and its threads */
    SPARE_MAPPINGS = 64
};

static xep_status_t check_space(const xep_room_view_t *view, uint32_t rank, uint64_t bytes)
{
    const uint64_t most = view->space.bytes > SPARE_BYTES ? (view->space.bytes - SPARE_BYTES) / bytes : 0;
    if (view->heaps > most)
        return xep_fail(XEP_ERR_NO_MEMORY,
                        "not enough address space in rank %u: it maps the heaps of %" PRIu64
                        " ranks of its host, %" PRIu64 " bytes each, all together %" PRIu64 " (%" PRIu64
                        " are left of ulimit -v)",
                        rank, view->heaps, bytes, bytes * view->heaps, view->space.bytes);
    if (view->heaps != 0 && view->space.mappings < view->heaps + SPARE_MAPPINGS)
        return xep_fail(XEP_ERR_NO_MEMORY,
                        "not enough mappings in rank %u: it maps the heaps of %" PRIu64 " ranks of its host (%" PRIu64
                        " are left of vm.max_map_count)",
                        rank, view->heaps, view->space.mappings);
    return XEP_OK;
}

static xep_status_t check_spaces(const xep_room_view_t *views, uint32_t nranks, uint64_t bytes)
{
    xep_status_t status = XEP_OK;
    for (uint32_t r = 0; r < nranks && status == XEP_OK && bytes != 0; r++) status = check_space(&views[r], r, bytes);
    return status;
}

xep_status_t xep_room_check_together(const xep_room_view_t *views, uint32_t nranks, uint64_t bytes)
{
    draw_t *draws = calloc((size_t)nranks * XEP_ROOM_SOURCES, sizeof *draws);
    xep_status_t status;
    if (draws == NULL) status = xep_fail(XEP_ERR_NO_MEMORY, "no memory for the views of %u ranks", nranks);
    else if ((status = check_spaces(views, nranks, bytes)) == XEP_OK &&
             (status = check_shared(views, nranks, bytes, draws)) == XEP_OK)
        status = check_memory(views, nranks, bytes, draws);
    free(draws);
    return status;
}
