/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Who may read what in a combine. Every rank is an owner, of the rows in its slot, and a reader, of what the others
 * have for its tokens. "Slot of r" is the one that r chose for the dispatch; kit->there knows them.
 *
 *  drain: the owner waits until own line [slot][r].read is at the epoch of the last combine from that slot, for all r:
 *  no rank reads its input, or its offers, any more. offer: to each r, when its rows are where r finds them: the offer,
 *  then the word r.line [own slot][self].ready. ready: the reader waits for line [slot of d][d].ready of all d, and
 *  compares the offers. read: to each d, when the sums are made: d.line [slot of d][self].read.
 *
 * Words hold epochs, only grow, and each line has one writer. A line is never written before it was read: an owner
 * offers the next combine after it has drained the last, and a slot has a new handle only after all combines of the old
 * one have ended at the reader, which its next dispatch tells.
 */
#ifndef XEP_HANDSHAKE_H
#define XEP_HANDSHAKE_H

#include "agree.h"
#include "kit.h"

/** What "ready" announces: "read", between the two, is about another slot. */
#define XEP_COMBINE_ANNOUNCED                                                       \
    {                                                                               \
        .offset = offsetof(xep_combine_line_t, offer), .bytes = sizeof(xep_offer_t) \
    }

/** xep_plugin_t.input, and .explain: of an operation, or of a slot whose input is waited for. */
xep_status_t xep_combine_input(void *mode, uint32_t slot, void **base_p, size_t *stride_p);
void xep_combine_explain(void *mode, const xep_op_t *op, char *text, size_t bytes);

/** The entries that are alike in the plugin tables of all modes. */
#define XEP_KIT_OPS                                                                             \
    .heap_size = xep_kit_heap_size, .progress = xep_steps_progress, .input = xep_combine_input, \
    .explain = xep_combine_explain

/** The words that drain and ready wait for. */
const _Atomic uint64_t *xep_combine_read_word(const void *mode, const xep_op_t *op, uint32_t rank, uint64_t *value_p);
const _Atomic uint64_t *xep_combine_ready_word(const void *mode, const xep_op_t *op, uint32_t rank, uint64_t *value_p);

/** Step with read_word: waits until the slot is drained, and takes it for op. */
xep_status_t xep_combine_drain(void *mode, xep_op_t *op);

/** Begins a combine that the mode has not refused. weights: XEP_AGREE_ANY, or the same on all ranks. */
xep_status_t xep_combine_begin(void *mode, xep_op_t *op, uint32_t weights);

/** Where this rank's expert outputs are: with the user, or in the slot's input. */
const char *xep_combine_outputs(const xep_kit_t *kit, const xep_op_t *op, size_t *stride_p);

/** The offer, for xep_step_send(): to a mapped rank, whose rows are in the slot's input; the last of all transfers. */
void xep_combine_store_offer(const void *mode, const xep_op_t *op, uint32_t rank);
void xep_combine_offer_transfer(const xep_kit_t *kit, const xep_op_t *op, xep_transfer_t *transfer);

/**
 * Where the reader's rows begin in this rank's input, for modes whose mapped readers cannot know it: stored before the
 * offer. And what rank has stored so, once its offer is here.
 */
void xep_combine_store_begin(const xep_kit_t *kit, const xep_op_t *op, uint32_t rank, uint64_t begin);
uint64_t xep_combine_begin_at(const xep_kit_t *kit, const xep_op_t *op, uint32_t rank);

/** What rank offers, once its word is here: a param, which is not checked yet. */
uint32_t xep_combine_offered(const xep_kit_t *kit, const xep_op_t *op, uint32_t rank, uint32_t param);

/** Step after ready_word: compares the offers; sets the verdict. XEP_ERR_PROTOCOL: one is of another combine. */
xep_status_t xep_combine_take_offers(void *mode, xep_op_t *op);

/** Step: tells all owners that their rows were read. */
xep_status_t xep_combine_tell_read(void *mode, xep_op_t *op);

/** Entries of lists of steps, so that every mode gives them the same names. Drain is the first of a combine. */
#define XEP_COMBINE_STEP_DRAIN XEP_COMBINE_STEP_DRAIN_BY(xep_combine_read_word)
#define XEP_COMBINE_STEP_DRAIN_BY(_word) \
    .name = "readers of the last combine", .does = "wait for readers", .run = xep_combine_drain, .word = _word
#define XEP_COMBINE_STEP_READY .run = xep_step_wait, .word = xep_combine_ready_word, .announced = XEP_COMBINE_ANNOUNCED
#define XEP_COMBINE_STEP_AGREE .name = "agreement", .does = "agree", .run = xep_combine_take_offers
#define XEP_COMBINE_STEP_TELL_READ \
    .name = "room to say that rows were read", .does = "tell read", .run = xep_combine_tell_read
/*
 * A next piece first sends the outputs of the piece before, which may lie in the slot, and waits until they have left:
 * then its rows are written there.
 */
#define XEP_STEP_PUT_OUTPUTS   .name = "outputs to go out", .does = "put outputs", .run = xep_step_put
#define XEP_STEP_FLUSH_OUTPUTS .name = "outputs to leave", .does = "flush outputs", .run = xep_step_flush

#endif
