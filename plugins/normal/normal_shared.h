/* SPDX-License-Identifier: BSD-3-Clause */

/** What the mode shares with its sibling for device memory (plugins/cuda): heap, records, digests, what users see. */
#ifndef XEP_NORMAL_SHARED_H
#define XEP_NORMAL_SHARED_H

#include "normal.h"

/* ---- normal_heap.c: places ---- */

xep_status_t normal_lay_heap(const xep_shape_t *shape, xep_heap_layout_t *layout, xep_carve_t region[XEP_REGIONS]);

/** Bytes of a record, at most. */
uint64_t normal_record_bytes(const xep_shape_t *shape);

/** Rows of a token that come back to its rank's memory, at most, where there is one piece. */
uint32_t normal_returns(const xep_shape_t *shape);

/** Offset of the lines that rank writes; index by turn. Of those that this rank writes in an operation. */
uint64_t normal_line_offset(const normal_t *mode, uint32_t index, uint32_t rank);
uint64_t normal_line_there(const normal_t *mode, const xep_op_t *op);

/** The lines that came from rank. */
normal_line_t *normal_line(const normal_t *mode, uint32_t index, uint32_t rank);

/** The offset of the record of rank, in the ring; and in a heap. */
uint64_t normal_record_begin(const normal_t *mode, uint64_t turn, uint32_t rank);
uint64_t normal_record_offset(const normal_t *mode, uint64_t turn, uint32_t rank);

/** First rows of all sources here, and of this rank everywhere, from rank_rows. */
void normal_find_begins(const normal_t *mode, normal_routing_t *routing);

/** Rows that go to one rank and come back, of all pieces: where those of owner begin in the returned area of reader. */
uint64_t normal_returned_begin(const normal_t *mode, const normal_slot_t *slot, uint32_t reader, uint32_t owner);

/* ---- normal_shared.c: whose routing is used, what the user sees ---- */

/** Lays what rows have beside them, of which the record has nothing yet, and notes its digest there. */
xep_status_t normal_take_fields(const normal_t *mode, xep_op_t *op);

/** Bytes for the rows of a dispatch that casts, and their scales. */
uint64_t normal_cast_room(const xep_shape_t *shape);

/**
 * Makes a dispatch that casts one of rows in that memory, which its steps for it fill: those that its own become. An
 * error refuses it.
 */
xep_status_t normal_take_casts(normal_t *mode, xep_op_t *op, const char *memory);

/**
 * The routing of the cached handle, or one nobody uses, to be made; the slot has none then, until one is used.
 * XEP_ERR_INVALID: it is for other tokens.
 */
xep_status_t normal_choose_routing(normal_t *mode, xep_op_t *op, normal_routing_t **routing_p);
void normal_use_routing(normal_t *mode, const xep_op_t *op, normal_routing_t *routing);

/** Fills recv of a dispatch with a cached routing, if it is certain that its rows have room. */
void normal_show_cached(normal_t *mode, const xep_op_t *op);

/** What a recv that is filled so lacks until the records are in: weights, if the rows have any. */
void normal_show_weights(const normal_t *mode, const xep_op_t *op);

/** Fills op's recv: the rows are counted. */
void normal_show_rows(normal_t *mode, const xep_op_t *op);

/** The same without counts, which the caller fills in, of so many rows; whether they are weighted is known. */
void normal_fill_recv(const normal_t *mode, const xep_op_t *op, uint64_t rows);

/** Counts [L] selections of the local experts in the rows that recv shows; rounds them up as op's caller wants. */
void normal_count_selections(const normal_t *mode, const xep_op_t *op, uint64_t *local);
void normal_align_experts(const normal_t *mode, const xep_op_t *op, uint64_t *rows);

/** Rows beyond those received, where the capacity is fixed: no expert. */
void normal_show_tail(const xep_op_t *op);

/** Step, the last one of a dispatch: tells the caller how many rows there were. */
xep_status_t normal_tell_rows(void *mode, xep_op_t *op);

/* ---- normal_records.c: telling and comparing ---- */

void normal_make_record(normal_t *mode, const xep_op_t *op);

/** What sends it: to a mapped rank, to any other. */
void normal_store_record(const void *mode, const xep_op_t *op, uint32_t rank);
int normal_record_transfer(const void *mode, const xep_op_t *op, uint32_t rank, uint32_t number,
                           xep_transfer_t *transfer);

/** What a record brings to a rank that is not mapped beside its header and rows; and the transfers that bring it. */
typedef struct normal_told {
    const uint32_t *selections;
    uint32_t experts;
    const void *tail;
    size_t tail_bytes;
} normal_told_t;
int normal_tell(const normal_t *mode, const xep_op_t *op, const normal_told_t *told, uint32_t number,
                xep_transfer_t *transfer);

/** Where the record of a rank lies that op has heard; NULL: nowhere any more. In the ring, if it is with that rank. */
typedef const char *(*normal_find_fn)(const normal_t *mode, const xep_op_t *op, uint32_t rank);
const char *normal_find_record(const normal_t *mode, const xep_op_t *op, uint32_t rank);

/**
 * Copies and checks all records, and sets the verdict of what they say; rows are counted, unless it is an error.
 * XEP_OK, or XEP_ERR_PROTOCOL.
 */
xep_status_t normal_take_records(normal_t *mode, xep_op_t *op, normal_find_fn find);

/** Parts of it: copies the header of a rank, and checks the copy; whether all have the same dispatch in mind. */
xep_status_t normal_take_header(normal_t *mode, xep_op_t *op, uint32_t rank, normal_find_fn find);
xep_status_t normal_compare_routings(normal_t *mode, xep_op_t *op);

/** Rows that a rank gets of all; the verdict, whether all ranks have room for theirs. */
uint64_t normal_count_rows(const normal_t *mode, const normal_slot_t *slot, uint32_t rank);
void normal_judge_room(normal_t *mode, xep_op_t *op);

/** Compares the parameters of all records, stride bytes apart: XEP_OK, or XEP_ERR_MISMATCH. */
xep_status_t normal_compare_records(const xep_env_t *env, xep_op_t *op, const void *records, size_t stride);

/* ---- normal_digest.c: do all ranks know the same? ---- */

void normal_make_factors(uint64_t *factors, uint32_t nranks);

/** Adds the rows of one rank to everybody to the routing's sums. */
void normal_digest_add(const normal_t *mode, normal_routing_t *routing, uint32_t rank);

/** The slot's digest: the verdict is there. */
void normal_make_digest(normal_t *mode, const xep_op_t *op);

/** Step: compares the digests of all ranks with this rank's. */
xep_status_t normal_compare_digests(void *mode, xep_op_t *op);

/** XEP_ERR_PROTOCOL: who was told what. */
xep_status_t normal_tell_difference(const normal_t *mode, xep_op_t *op, uint32_t rank, const normal_digest_t *theirs);

#endif
