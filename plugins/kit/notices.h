/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Notices: one line that every rank writes for every other one in a dispatch. The mode defines the line, except its
 * first word: that has the epoch, once all the rest of the line is there, and how many rows are there. When more rows
 * come, only the word is set again.
 *
 * Lines lie in a ring of 2 * slots turns, of dispatches and next pieces, and so may what they announce. Why nothing
 * there is overwritten before it was read: entry i is written again in turn q + 2 * slots. The core begins that turn at
 * a rank after turn q + slots is complete there, which took the notices of all ranks for q + slots; a rank sends those
 * after its own turn q is complete, and so after it has read entry i of all ranks. All ranks have the same turns and so
 * the same entries: no rank needs to know another's slots, and nothing is given back.
 */
#ifndef XEP_NOTICES_H
#define XEP_NOTICES_H

#include "kit.h"

enum { XEP_NOTICE_BYTES = 64 };

/** Entries of the ring. */
uint64_t xep_notices_ring(const xep_shape_t *shape);

/** Offset of the lines [ring][R]: layout->notices. */
uint64_t xep_notices_lay(const xep_shape_t *shape, xep_carve_t *control);

/** Which entry of the ring is that of a turn; which of [ring][R] is that of a source. */
uint64_t xep_notices_entry(const xep_kit_t *kit, uint64_t turn);
uint64_t xep_notices_entry_of(const xep_kit_t *kit, uint64_t turn, uint32_t source);

/** What the word announces: all the rest of the line. */
#define XEP_NOTICE_ANNOUNCED                                                          \
    {                                                                                 \
        .offset = sizeof(uint64_t), .bytes = XEP_NOTICE_BYTES - (int)sizeof(uint64_t) \
    }

/** The word, and its value when the notice is here, with whatever rows. */
const _Atomic uint64_t *xep_notices_word(const void *mode, const xep_op_t *op, uint32_t rank, uint64_t *value_p);

/** Stores the notice, with its word, at a mapped rank, for which all rows are there. */
void xep_notices_store(const xep_kit_t *kit, const xep_op_t *op, uint32_t rank, const void *notice);

/**
 * Sends the notice to any other rank, after all puts to it: so many rows are there. notice: unchanged until it is
 * flushed.
 */
void xep_notices_transfer(const xep_kit_t *kit, const xep_op_t *op, const void *notice, uint64_t rows,
                          xep_transfer_t *transfer);

/** Sends the word again: now so many rows are there. */
void xep_notices_more(const xep_kit_t *kit, const xep_op_t *op, uint64_t rows, xep_transfer_t *transfer);

/**
 * Copies the notice of a source, so that what is checked is what is used; own is this rank's, which is not read where
 * peers can write.
 */
void xep_notices_take(const xep_kit_t *kit, const xep_op_t *op, uint32_t source, const void *own, void *notice);

#endif
