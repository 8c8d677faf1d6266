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

/* ---- memory ---- */

/* that a rank draws from */
typedef struct draw {
    uint64_t id, bytes;
    uint32_t rank, source;
} draw_t;

/* groups draws from the same source, by rank; a machine's memory and what it may promise are different sources */
static int compare_draws(const void *a, const void *b)
{
    const draw_t *x = a, *y = b;
    int promise_x = x->source == XEP_ROOM_PROMISE, promise_y = y->source == XEP_ROOM_PROMISE;
    if (x->id != y->id) return x->id < y->id ? -1 : 1;
    if (promise_x != promise_y) return promise_x - promise_y;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

static size_t list_draws(const xep_room_view_t *views, uint32_t nranks, draw_t *draws)
{
    size_t count = 0;
    for (uint32_t r = 0; r < nranks; r++)
        for (uint32_t i = 0; i < XEP_ROOM_SOURCES; i++) {
            const xep_room_source_t *source = &views[r].room.source[i];
            if (source->id != 0 && source->bytes != UINT64_MAX)
                draws[count++] = (draw_t){source->id, source->bytes, r, i};
        }
    qsort(draws, count, sizeof *draws, compare_draws);
    return count;
}

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

static xep_status_t check_memory(const xep_room_view_t *views, uint32_t nranks, uint64_t bytes, draw_t *draws)
{
    xep_status_t status = XEP_OK;
    size_t all = list_draws(views, nranks, draws), begin = 0;
    for (size_t i = 1; i <= all && status == XEP_OK; i++) {
        if (i < all && draws[i].id == draws[begin].id &&
            (draws[i].source == XEP_ROOM_PROMISE) == (draws[begin].source == XEP_ROOM_PROMISE))
            continue;
        status = check_source(&draws[begin], i - begin, bytes);
        begin = i;
    }
    return status;
}

/* ---- shared memory ---- */

/* the two kinds that a rank's heap may be of, whichever has room */
typedef struct choice {
    const xep_shared_room_t *shared;
    uint32_t rank;
} choice_t;

static int compare_choices(const void *a, const void *b)
{
    const choice_t *x = a, *y = b;
    for (int kind = 0; kind < XEP_SHARED_KINDS; kind++)
        if (x->shared[kind].id != y->shared[kind].id) return x->shared[kind].id < y->shared[kind].id ? -1 : 1;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

static int is_same_choice(const choice_t *a, const choice_t *b)
{
    return a->shared[XEP_SHARED_SYSV].id == b->shared[XEP_SHARED_SYSV].id &&
           a->shared[XEP_SHARED_POSIX].id == b->shared[XEP_SHARED_POSIX].id;
}

static xep_status_t check_choice(const choice_t *choices, size_t count, uint64_t bytes)
{
    xep_shared_room_t least[XEP_SHARED_KINDS];
    memcpy(least, choices[0].shared, sizeof least);
    for (size_t i = 1; i < count; i++)
        for (int kind = 0; kind < XEP_SHARED_KINDS; kind++)
            if (choices[i].shared[kind].heaps < least[kind].heaps) least[kind] = choices[i].shared[kind];
    uint64_t heaps = least[XEP_SHARED_SYSV].heaps, posix = least[XEP_SHARED_POSIX].heaps;
    if (heaps == 0 && posix == 0) return XEP_OK; /* nor does one alone, or none are asked for */
    if (heaps >= count || posix >= count - heaps) return XEP_OK;
    char each[XEP_UNITS_BYTES], all[XEP_UNITS_BYTES], segments[XEP_UNITS_BYTES], files[XEP_UNITS_BYTES];
    return xep_fail(XEP_ERR_NO_MEMORY,
                    "not enough shared memory for %zu ranks of one host, from rank %u on: each needs %s, all together "
                    "%s (System V segments: %s free, room for %" PRIu64 "; /dev/shm: %s free, room for %" PRIu64 ")",
                    count, choices[0].rank, xep_units_of(bytes, each), xep_units_of(bytes * count, all),
                    xep_units_of(least[XEP_SHARED_SYSV].bytes, segments), heaps,
                    xep_units_of(least[XEP_SHARED_POSIX].bytes, files), posix);
}

static xep_status_t check_shared(const xep_room_view_t *views, uint32_t nranks, uint64_t bytes, choice_t *choices)
{
    xep_status_t status = XEP_OK;
    size_t begin = 0;
    for (uint32_t r = 0; r < nranks; r++) choices[r] = (choice_t){views[r].shared, r};
    qsort(choices, nranks, sizeof *choices, compare_choices);
    for (size_t i = 1; i <= nranks && status == XEP_OK; i++) {
        if (i < nranks && is_same_choice(&choices[i], &choices[begin])) continue;
        status = check_choice(&choices[begin], i - begin, bytes);
        begin = i;
    }
    return status;
}

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
    choice_t *choices = calloc(nranks, sizeof *choices);
    xep_status_t status;
    if (draws == NULL || choices == NULL)
        status = xep_fail(XEP_ERR_NO_MEMORY, "no memory for the views of %u ranks", nranks);
    else if ((status = check_spaces(views, nranks, bytes)) == XEP_OK &&
             (status = check_shared(views, nranks, bytes, choices)) == XEP_OK)
        status = check_memory(views, nranks, bytes, draws);
    free(choices);
    free(draws);
    return status;
}
