/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Rows that are read in place (XEP_DISPATCH_IN_PLACE): the memory of a rank in which mapped peers read the rows of its
 * dispatches.
 *
 * Each area has the rows of one dispatch. A source has its rows in one of them: the user wrote them there, or it copies
 * or casts them once. Its record or notice says where, and receivers read them there. When a receiver's handle ends, it
 * stores the epoch of the dispatch into released[area][self] of each source. An area takes new rows when
 * released[area][r] has the epoch of its last dispatch for all mapped r. Only the user waits for that: a dispatch that
 * finds no free area copies its rows to the receivers instead, and says so. So no operation waits for a release, which
 * may itself wait for an operation. There is one more area than slots, so this rank has released at least one. An area
 * has one dispatch at a time, so each word of released only grows. Unmapped receivers get rows from the source's
 * memory, which is not used again before the source's own handle has ended, and with it the operation.
 *
 * Rows are numbered through all areas, so that one word says where those of a dispatch are, in a record or a notice:
 * rows_at, 1 + the number of token 0's; 0: they are copied.
 */
#ifndef XEP_KIT_IN_PLACE_H
#define XEP_KIT_IN_PLACE_H

#include <xep/plugin.h>

typedef struct xep_kit xep_kit_t;     /* kit.h */
typedef struct xep_carve xep_carve_t; /* carve.h */

#define XEP_NO_AREA UINT32_MAX

/** Memory of a rank in which others read rows in place, in every rank's heap. */
typedef struct xep_in_place_layout {
    uint64_t areas;    /* slots + 1, or 0: rows are always copied */
    uint64_t bytes;    /* of an area */
    uint64_t stride;   /* between rows that the user writes: the mode's */
    uint64_t first;    /* XEP_REGION_ROWS: [areas] of bytes */
    uint64_t released; /* XEP_REGION_CONTROL: [areas][R] _Atomic uint64_t, written by that rank */
} xep_in_place_layout_t;

/** Where the rows of a dispatch lie if they are read in place. */
typedef struct xep_in_place_rows {
    uint32_t rows_at; /* what others are told; 0: rows are copied to the receivers */
    uint32_t area;
    char *fill; /* where this rank puts them first; NULL: the user wrote them there */
} xep_in_place_rows_t;

/** What a handle reads of a rank. */
typedef struct xep_in_place_read {
    uint64_t epoch;   /* of the dispatch */
    uint32_t rows_at; /* of that rank; 0: nothing */
    uint32_t reserved;
} xep_in_place_read_t;

/** What a buffer with such memory knows of it: kit->in_place. */
typedef struct xep_in_place {
    uint64_t *epochs;           /* [areas] of the dispatch whose rows are there; 0: there are none to be released */
    xep_in_place_read_t *reads; /* [slots][R] of the handle in each */
    uint32_t handed;            /* area that the user may write, or XEP_NO_AREA */
} xep_in_place_t;

/** Lays all areas, where the shape has any; its arrays among those of the mode. */
void xep_in_place_lay(const xep_shape_t *shape, xep_in_place_layout_t *at, xep_carve_t *region);
void xep_in_place_lay_arrays(xep_kit_t *kit, xep_carve_t *arena);

/** Makes pages present: all of this rank; what rows of a slot with so many tokens need of a peer. */
void xep_in_place_prefault_slot(const xep_kit_t *kit, uint32_t rank, uint32_t slot, uint64_t tokens);

/**
 * Decides where the rows of a dispatch will be, in its state. Changes nothing yet; an error refuses the dispatch.
 */
xep_status_t xep_in_place_choose(const xep_kit_t *kit, xep_op_t *op);

/** Steps. Behind the begin: takes the area. Behind the verdict: a dispatch that moves nothing gives it back. */
xep_status_t xep_in_place_take(void *mode, xep_op_t *op);
xep_status_t xep_in_place_return(void *mode, xep_op_t *op);

/** Whether so many rows are in an area from there on, or none are in place. */
int xep_in_place_is_sane(const xep_kit_t *kit, uint64_t rows_at, uint64_t tokens);

/** The row of token 0, of a rank that is mapped; not 0, and sane. */
char *xep_in_place_rows(const xep_kit_t *kit, uint32_t rank, uint64_t rows_at);

/** The handle of op reads these rows, of a rank that is mapped: until it is released. */
void xep_in_place_read(const xep_kit_t *kit, const xep_op_t *op, uint32_t rank, uint64_t rows_at);

/** xep_plugin_t.place */
__attribute__((visibility("hidden"))) extern const xep_place_ops_t xep_kit_places;

#endif
