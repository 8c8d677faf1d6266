/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The steps of a plain dispatch and a plain combine, and of what they are made, for the files of features, which have
 * steps of their own: for masks, nodes, pieces, rows in place.
 */
#ifndef XEP_NORMAL_STEPS_H
#define XEP_NORMAL_STEPS_H

#include "normal_shared.h"

/** Steps of plain buffers; of features: operations that cast, rows in place, rows that stay on devices. */
extern const xep_step_t normal_dispatch_steps[], normal_combine_steps[];
extern const xep_step_t normal_casts_steps[], normal_in_place_steps[], normal_direct_steps[];

/** Composes those that operations of this buffer take. */
void normal_choose_steps(normal_t *mode);

/* ---- normal_plan.c: who gets what ---- */

/** Routes by op's topk_idx. XEP_ERR_INVALID for an index that is no expert and not -1. */
xep_status_t normal_make_plan(normal_t *mode, xep_op_t *op, normal_routing_t *routing);

/** Step: a dispatch begins: puts the ranks of each token in the order of its last selection of each. */
xep_status_t normal_order_by_selection(void *mode, xep_op_t *op);

/** Fills tokens_to and to_begin. */
void normal_list_tokens(normal_t *mode, normal_routing_t *routing);

/* ---- normal_put.c: what ranks get that are not mapped ---- */

/** Lays metadata that goes to them, in the arena. */
void normal_lay_puts(const normal_t *mode, xep_carve_t *arena, normal_target_t *to);

/** Step: a dispatch begins. */
xep_status_t normal_list_puts(void *mode, xep_op_t *op);

int normal_dispatch_transfer(const void *mode, const xep_op_t *op, uint32_t rank, uint32_t number,
                             xep_transfer_t *transfer);

/** The last one of these. */
void normal_done_transfer(const normal_t *mode, const xep_op_t *op, xep_transfer_t *transfer);

/* ---- normal_cast.c ---- */

/** Where cast rows lie, of all slots. */
void normal_lay_casts(normal_t *mode);

/** Makes a dispatch that casts, whose routing is known, one of the rows that its own become. An error refuses it. */
xep_status_t normal_begin_casts(normal_t *mode, xep_op_t *op);

/* ---- normal_dispatch.c ---- */

/** The words of steps 3 and 6; what step 4 stores last. */
const _Atomic uint64_t *normal_counts_word(const void *mode, const xep_op_t *op, uint32_t rank, uint64_t *value_p);
const _Atomic uint64_t *normal_done_word(const void *mode, const xep_op_t *op, uint32_t rank, uint64_t *value_p);
void normal_store_done(const void *mode, const xep_op_t *op, uint32_t rank);

/** Step 3; and its end, where the verdict is known: the digest, and what the user sees of rows that are counted. */
xep_status_t normal_agree(void *mode, xep_op_t *op);
void normal_conclude(normal_t *mode, xep_op_t *op);

/**
 * Steps: where the next row for each rank goes: in its slot behind those of lower ranks, or in this rank's staging; in
 * slots alone, where all ranks are mapped.
 */
xep_status_t normal_find_places(void *mode, xep_op_t *op);
xep_status_t normal_find_mapped_places(void *mode, xep_op_t *op);

/** The slot of a mapped rank, from row 0 on; and as the target of the rows that op brings there. */
normal_target_t normal_target_of(const normal_t *mode, const xep_op_t *op, uint32_t rank);
void normal_aim_at_slot(const normal_t *mode, const xep_op_t *op, uint32_t rank);

/**
 * Steps: all rows that op brings, and done; likewise, where all ranks are mapped. Rows alone, unless the verdict is an
 * error; some of the tokens that are ready.
 */
xep_status_t normal_move(void *mode, xep_op_t *op);
xep_status_t normal_move_mapped(void *mode, xep_op_t *op);
xep_status_t normal_move_rows(normal_t *mode, xep_op_t *op);
void normal_move_slice(normal_t *mode, xep_op_t *op);

/** Step: waits for done, where some ranks are not mapped. */
xep_status_t normal_wait_rows(void *mode, xep_op_t *op);

/* ---- normal_fill.c: outputs to where mapped readers will find them ---- */

/** Where the first row of range goes that is for reader; 0: those are not copied. */
typedef int (*normal_filled_fn)(const normal_t *mode, const xep_op_t *op, uint32_t reader, const normal_range_t *range,
                                normal_place_t *place);
void normal_fill_all(normal_t *mode, const xep_op_t *op, normal_filled_fn find);

/** Step. */
xep_status_t normal_fill(void *mode, xep_op_t *op);

/* ---- normal_combine.c ---- */

/** Outputs, and weights, for a reader that is not mapped, in its "returned": transfers 0 and 1. */
enum { NORMAL_RETURNED_TRANSFERS = 2 };
void normal_returned_transfer(const normal_t *mode, const xep_op_t *op, uint32_t rank, uint32_t number,
                              xep_transfer_t *transfer);
int normal_combine_transfer(const void *mode, const xep_op_t *op, uint32_t rank, uint32_t number,
                            xep_transfer_t *transfer);

/** Row "row" of the area "input", or "returned", of a slot in a heap. */
normal_place_t normal_input_place(const normal_t *mode, char *heap, uint32_t slot, uint32_t topk, uint64_t row);
normal_place_t normal_returned_place(const normal_t *mode, char *heap, uint32_t slot, uint32_t topk, uint64_t row);

/**
 * Where the outputs of a mapped owner are, and what others have returned, from a row on; sets where those of owner are
 * that are for tokens of this rank.
 */
normal_place_t normal_outputs_at(const normal_t *mode, const xep_op_t *op, uint32_t owner, uint64_t row);
normal_place_t normal_returned_at(const normal_t *mode, const xep_op_t *op, uint64_t row);
void normal_find_source(const normal_t *mode, const xep_op_t *op, uint32_t owner);

/** Sums the weights beside some rows, in their order: each selection by itself. */
void normal_sum_weights(float *out, uint32_t topk, const normal_place_t *sources, const normal_dest_t *terms,
                        uint64_t count);

/** Sums tokens, from those on that are summed. */
void normal_sum_tokens(normal_t *mode, xep_op_t *op, const normal_terms_t *terms, uint64_t end);

/** Steps, or what they do: sums all of them, by their ranks. */
xep_status_t normal_sum_terms(normal_t *mode, xep_op_t *op, const normal_terms_t *terms);
xep_status_t normal_sum(void *mode, xep_op_t *op);

/* ---- for the plugin; what travels, which normal_paths.c tells ---- */

void normal_tell_traffic(const xep_shape_t *shape, xep_traffic_t *dispatch, xep_traffic_t *combine);
xep_status_t normal_dispatch(void *mode, xep_op_t *op);

#endif
