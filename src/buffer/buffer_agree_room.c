/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Each rank of a host may find room for its heap although there is none for all: segments are granted before they are
 * touched, and all check /dev/shm before one of them writes. So in the first exchange of a buffer, before there is any
 * heap, every rank says what it would draw from and how much is free there. Ranks that draw from the same see the same
 * numbers, and come to the same verdict; the others hear of it when all say whether they have their heaps.
 */
#include "buffer_agree.h"

#include <inttypes.h>
#include <string.h>

#include "error.h"
#include "text.h"

void xep_room_view(xep_transport_t *transport, uint64_t bytes, xep_room_view_t *view)
{
    memset(view, 0, sizeof *view);
    xep_room_see("", &view->room);
    transport->ops->shared_room(transport, bytes, view->shared);
}

/* ---- memory ---- */

static const char *name_source(int source)
{
    if (source == XEP_ROOM_MACHINE) return "of the machine";
    return source == XEP_ROOM_PROMISE ? "that the machine would promise" : "of the control group";
}

/* A machine's memory and what it may promise are different sources, of one id. */
static int is_same_source(const xep_room_source_t *own, int i, const xep_room_source_t *other, int j)
{
    return own->id == other->id && (i == XEP_ROOM_PROMISE) == (j == XEP_ROOM_PROMISE) && other->bytes != UINT64_MAX;
}

/* Ranks look at slightly different times: takes the least that one has seen. */
static xep_status_t check_source(const xep_room_view_t *views, uint32_t nranks, uint32_t rank, int i, uint64_t bytes)
{
    const xep_room_source_t *own = &views[rank].room.source[i];
    uint64_t least = own->bytes, count = 0;
    uint32_t first = rank;
    if (own->id == 0 || own->bytes == UINT64_MAX) return XEP_OK;
    for (uint32_t r = 0; r < nranks; r++)
        for (int j = 0; j < XEP_ROOM_SOURCES; j++) {
            const xep_room_source_t *other = &views[r].room.source[j];
            if (!is_same_source(own, i, other, j)) continue;
            if (other->bytes < least) least = other->bytes;
            if (count++ == 0) first = r;
        }
    if (least / bytes >= count || least / bytes == 0) return XEP_OK;
    char each[XEP_UNITS_BYTES], all[XEP_UNITS_BYTES], left[XEP_UNITS_BYTES];
    return xep_fail(XEP_ERR_NO_MEMORY,
                    "not enough memory for %" PRIu64 " ranks of one host, from rank %u on: each needs %s, all together "
                    "%s (%s are free %s)",
                    count, first, xep_units_of(bytes, each), xep_units_of(bytes * count, all),
                    xep_units_of(least, left), name_source(i));
}

/* ---- shared memory: a rank's heap may be of either kind, whichever has room ---- */

static xep_status_t check_shared(const xep_room_view_t *views, uint32_t nranks, uint32_t rank, uint64_t bytes)
{
    xep_shared_room_t least[XEP_SHARED_KINDS];
    uint64_t count = 0;
    uint32_t first = rank;
    memcpy(least, views[rank].shared, sizeof least);
    for (uint32_t r = 0; r < nranks; r++) {
        const xep_shared_room_t *other = views[r].shared;
        if (other[0].id != least[0].id || other[1].id != least[1].id) continue;
        for (int kind = 0; kind < XEP_SHARED_KINDS; kind++)
            if (other[kind].heaps < least[kind].heaps) least[kind] = other[kind];
        if (count++ == 0) first = r;
    }
    uint64_t heaps = least[XEP_SHARED_SYSV].heaps, posix = least[XEP_SHARED_POSIX].heaps;
    if (heaps == 0 && posix == 0) return XEP_OK; /* nor does one alone, or none are asked for */
    if (heaps >= count || posix >= count - heaps) return XEP_OK;
    char each[XEP_UNITS_BYTES], all[XEP_UNITS_BYTES], segments[XEP_UNITS_BYTES], files[XEP_UNITS_BYTES];
    return xep_fail(XEP_ERR_NO_MEMORY,
                    "not enough shared memory for %" PRIu64 " ranks of one host, from rank %u on: each needs %s, all "
                    "together %s (System V segments: %s free, room for %" PRIu64 "; /dev/shm: %s free, room for "
                    "%" PRIu64 ")",
                    count, first, xep_units_of(bytes, each), xep_units_of(bytes * count, all),
                    xep_units_of(least[XEP_SHARED_SYSV].bytes, segments), heaps,
                    xep_units_of(least[XEP_SHARED_POSIX].bytes, files), posix);
}
_Static_assert(XEP_SHARED_KINDS == 2, "an id for both");

xep_status_t xep_room_check_together(const xep_room_view_t *views, uint32_t nranks, uint32_t rank, uint64_t bytes)
{
    if (bytes == 0) return XEP_OK;
    xep_status_t status = check_shared(views, nranks, rank, bytes);
    for (int i = 0; i < XEP_ROOM_SOURCES && status == XEP_OK; i++) status = check_source(views, nranks, rank, i, bytes);
    return status;
}

/* ---- addresses ---- */

enum {
    SPARE_BYTES = 32 << 20, /* for what else a buffer takes, and its threads */
    SPARE_MAPPINGS = 64
};

xep_status_t xep_room_check_space(const xep_room_space_t *space, uint32_t heaps, uint64_t bytes)
{
    const uint64_t most = space->bytes > SPARE_BYTES ? (space->bytes - SPARE_BYTES) / bytes : 0;
    if (heaps > most)
        return xep_fail(XEP_ERR_NO_MEMORY,
                        "not enough address space: this rank maps the heaps of %u ranks of its host, %" PRIu64
                        " bytes each, all together %" PRIu64 " (%" PRIu64 " are left of ulimit -v)",
                        heaps, bytes, bytes * heaps, space->bytes);
    if (space->mappings < heaps + UINT64_C(1) * SPARE_MAPPINGS)
        return xep_fail(XEP_ERR_NO_MEMORY,
                        "not enough mappings: this rank maps the heaps of %u ranks of its host (%" PRIu64
                        " are left of vm.max_map_count)",
                        heaps, space->mappings);
    return XEP_OK;
}
