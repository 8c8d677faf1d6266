/* SPDX-License-Identifier: BSD-3-Clause */

/** How much memory there is left for this process: of the machine, and of the control group it is in. */
#ifndef XEP_UTIL_ROOM_H
#define XEP_UTIL_ROOM_H

#include <stdint.h>

#include <xep/xep.h>

/** Memory that has a bound. */
typedef struct xep_room_source {
    uint64_t id;    /* equal for processes that draw from the same source; 0: not known */
    uint64_t bytes; /* that are free, or can be freed without hurting anybody; UINT64_MAX: not known, or no bound */
} xep_room_source_t;

/** The sources that a process draws from with each page. */
enum { XEP_ROOM_MACHINE, XEP_ROOM_PROMISE, XEP_ROOM_GROUPS, XEP_ROOM_SOURCES = XEP_ROOM_GROUPS + 4 };
typedef struct xep_room {
    /* the machine's memory, what it may still promise, and the control groups that have the least left */
    xep_room_source_t source[XEP_ROOM_SOURCES];
} xep_room_t;

void xep_room_see(const char *root, xep_room_t *room);

/** What this process may still map, however much memory is free; UINT64_MAX: not known, or no bound. */
typedef struct xep_room_space {
    uint64_t bytes;    /* of addresses (RLIMIT_AS) */
    uint64_t mappings; /* (vm.max_map_count) */
} xep_room_space_t;

void xep_room_see_space(xep_room_space_t *space);

/** Bytes that are free, or can be freed without hurting anybody; UINT64_MAX: not known. root: "", or a copy of the
 *  files of the system (for tests). */
uint64_t xep_room_free(const char *root);

/** XEP_ERR_NO_MEMORY if this many bytes cannot be had, even if nobody else takes any. */
xep_status_t xep_room_check(uint64_t bytes);

/* ---- /dev/shm, for the sentence of an error that it is likely to have caused ---- */

enum { XEP_SHM_HINT_BYTES = 192 };

/** " (/dev/shm ...: what to do)" where it has no room for so many bytes, else "". */
void xep_shm_hint(uint64_t bytes, char text[XEP_SHM_HINT_BYTES]);

#endif
