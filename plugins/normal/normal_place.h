/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Rows that are read in place. With XEP_DISPATCH_IN_PLACE step 4 (normal.h) moves no rows between mapped ranks: a
 * source has its rows in an area "sends" of its own heap (the user wrote them there, or it copies them once), its
 * record says where, and receivers read them there. A slot of the receiver whose handle ends stores the epoch of its
 * dispatch into released[area][self] of each source. An area takes new rows when released[area][r] is at the epoch of
 * the dispatch that used it last, for all mapped r, and who waits for that is the user alone: a dispatch that finds no
 * such area copies its rows to the receivers' slots instead, as its record then says. So no operation waits for a
 * release, which may itself wait for an operation. There is one area more than slots: this rank has released all of
 * one. An area has one dispatch at a time, so each word of released only grows. Unmapped receivers get rows from the
 * source's memory, which is not used again before the source's own handle has ended, and with it the operation.
 */
#ifndef XEP_NORMAL_PLACE_H
#define XEP_NORMAL_PLACE_H

#include "normal.h"

#define NORMAL_NO_AREA UINT32_MAX

/** An area of rows that peers read in place. */
typedef struct normal_send {
    uint64_t epoch;  /* of the dispatch whose rows are there; 0: none yet */
    uint64_t before; /* what epoch was before that dispatch, which may move nothing */
    uint64_t first;  /* row of its token 0 */
    uint64_t tokens; /* of it, whose sums are known */
    size_t bytes;    /* of its rows */
    uint64_t *sums;  /* [tokens] of the rows; only where they are checked */
} normal_send_t;

extern const xep_place_ops_t normal_place;

/** Decides where the rows of a dispatch will be. Nothing is changed yet, and an error refuses the dispatch. */
xep_status_t normal_choose_place(normal_t *mode, xep_op_t *op);

/** The dispatch begins: the area is its own. */
void normal_take_place(normal_t *mode, const xep_op_t *op);

/** The dispatch has moved nothing: the area is as it was before. */
void normal_return_place(normal_t *mode, const xep_op_t *op);

/** What this rank's rows are, where that is checked: they are all in place now. */
void normal_note_rows(normal_t *mode, const xep_op_t *op);

/** Fills row of the slot: all rows are here. XEP_ERR_PROTOCOL: a token that its source does not have. */
xep_status_t normal_point_rows(normal_t *mode, xep_op_t *op);

#endif
