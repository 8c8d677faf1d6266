/* SPDX-License-Identifier: BSD-3-Clause */

/** Sending to every rank: by stores where it is mapped, else in puts that are taken up again where the wire stopped. */
#ifndef XEP_SEND_H
#define XEP_SEND_H

#include <xep/plugin.h>

typedef struct xep_kit xep_kit_t; /* kit.h */
typedef struct xep_cursor xep_cursor_t;

/** One put of rows of a part. */
typedef struct xep_piece {
    const char *src;
    uint64_t offset; /* in the rank's heap */
    size_t bytes;
    uint64_t rows; /* of the part, that it brings */
} xep_piece_t;

/** The piece of part "number" that brings the first row at or after *row_p; 0: there is none, the part is sent. */
typedef int (*xep_cut_fn)(const void *mode, const xep_op_t *op, uint32_t rank, uint32_t number, uint64_t *row_p,
                          xep_piece_t *piece);

/** Rows of one array to put to a rank; or the signal that follows them, which may bring bytes itself. */
typedef struct xep_part {
    int signal;  /* value goes to the word at signal_offset, after bytes of src to offset; no rows */
    int blocked; /* cannot be sent yet */
    const char *src;
    size_t src_stride;
    const uint32_t *index; /* [rows] source rows; NULL: 0, 1, ... */
    uint64_t rows;
    uint64_t coming; /* of them, at the end, that cannot be sent yet */
    size_t bytes;    /* of a row; 0: there are none to send */
    uint64_t offset; /* in the rank's heap */
    size_t stride;
    /* NULL: rows that lie one behind the other on both sides are a piece; else it knows all of the above */
    xep_cut_fn cut;
    uint64_t signal_offset, value;
} xep_part_t;

/** Describes part number "number" of what a rank that is not mapped gets; 0 when there is no such part. */
typedef int (*xep_part_fn)(const void *mode, const xep_op_t *op, uint32_t rank, uint32_t number, xep_part_t *part);

/** Stores what a mapped rank gets, its signal last. */
typedef void (*xep_store_fn)(const void *mode, const xep_op_t *op, uint32_t rank);

/** Contiguous rows are put together up to so many bytes, but at least one row: between two puts the wire progresses. */
enum { XEP_PIECE_BYTES = 256 * 1024 };

/**
 * Stores to mapped ranks, once in a step, and puts parts to all others, from op's cursor on. store NULL: parts for all
 * ranks, and those for mapped ones are copied by the wire. XEP_INPROGRESS: a part is blocked, or much is in flight.
 */
xep_status_t xep_send(xep_kit_t *kit, xep_op_t *op, xep_store_fn store, xep_part_fn parts);

/** Parts alone, as far as they can be sent before mapped ranks are told. */
xep_status_t xep_send_parts(xep_kit_t *kit, xep_op_t *op, xep_part_fn parts);

/**
 * Parts alone, to each rank as far as none is blocked. at: [R], zero at first: how far each is. XEP_INPROGRESS: some
 * are.
 */
xep_status_t xep_send_each(xep_kit_t *kit, xep_op_t *op, xep_part_fn parts, xep_cursor_t *at);

#endif
