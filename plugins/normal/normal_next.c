/* SPDX-License-Identifier: BSD-3-Clause */

/* The next piece of a dispatch: steps 1 to 5 of the protocol in normal_pieces.h. */
#include <string.h>

#include "normal_pieces.h"
#include "normal_steps.h"

/* ---- words ---- */

static uint64_t line_offset(const normal_t *mode, uint32_t slot, uint32_t rank)
{
    return mode->layout.pieces + ((uint64_t)slot * mode->kit.shape->nranks + rank) * sizeof(normal_piece_line_t);
}

/* This rank's line in the heap of another one, by the slot that that one chose. */
static uint64_t line_there(const normal_t *mode, const xep_op_t *op, uint32_t rank)
{
    return line_offset(mode, normal_slot(mode, op->slot)->from[rank].slot, mode->kit.shape->rank);
}

static const normal_piece_line_t *line_from(const normal_t *mode, const xep_op_t *op, uint32_t rank)
{
    return xep_kit_own(&mode->kit, line_offset(mode, op->slot, rank));
}

/*
 * Both words lie in the line of the own slot and not in one of the turn, as a slot has one operation at a time. The
 * acquire of whoever waits for them is what makes the offer, and what was concluded, visible behind them.
 */
static const _Atomic uint64_t *opened_word(const void *mode, const xep_op_t *op, uint32_t rank, uint64_t *value_p)
{
    *value_p = op->epoch;
    return &line_from(mode, op, rank)->opened;
}

static const _Atomic uint64_t *arrived_word(const void *mode, const xep_op_t *op, uint32_t rank, uint64_t *value_p)
{
    *value_p = op->epoch;
    return &line_from(mode, op, rank)->arrived;
}

/* ---- steps 1 and 2: outputs, openings ---- */

static void store_opened(const void *opaque, const xep_op_t *op, uint32_t rank)
{
    const normal_t *mode = opaque;
    uint64_t line = line_there(mode, op, rank);
    memcpy(mode->kit.base[rank] + line + offsetof(normal_piece_line_t, offer), &xep_kit_state(op)->offer,
           sizeof(xep_offer_t));
    xep_kit_signal(&mode->kit, rank, line + offsetof(normal_piece_line_t, opened), op->epoch);
}

/* What a signal brings along lies in the lines, as its word does. */
static xep_transfer_t signal_transfer(uint64_t line, const void *src, size_t bytes, size_t offset, size_t word,
                                      uint64_t epoch)
{
    return (xep_transfer_t){.signal = 1,
                            .src = src,
                            .bytes = bytes,
                            .offset = line + offset,
                            .signal_offset = line + word,
                            .value = epoch};
}

static int opened_transfer(const void *opaque, const xep_op_t *op, uint32_t rank, uint32_t number,
                           xep_transfer_t *transfer)
{
    const normal_t *mode = opaque;
    *transfer = signal_transfer(line_there(mode, op, rank), &xep_kit_state(op)->offer, sizeof(xep_offer_t),
                                offsetof(normal_piece_line_t, offer), offsetof(normal_piece_line_t, opened), op->epoch);
    return number == 0;
}

/* Rows, then weights. */
static int output_transfer(const void *opaque, const xep_op_t *op, uint32_t rank, uint32_t number,
                           xep_transfer_t *transfer)
{
    if (number < NORMAL_RETURNED_TRANSFERS) normal_kept_transfer(opaque, op, rank, number, transfer);
    return number < NORMAL_RETURNED_TRANSFERS;
}

/*
 * Outputs for mapped readers are stored by normal_fill_pieces(), those for all others are put. Both may be read from
 * the slot itself, into which the next piece comes: so nothing is opened before they have left it.
 */
static xep_status_t return_outputs(void *mode, xep_op_t *op)
{
    return op->combine == NULL ? XEP_OK : normal_fill_pieces(mode, op);
}

static xep_status_t put_outputs(void *mode, xep_op_t *op)
{
    return op->combine == NULL ? XEP_OK : xep_send_transfers(mode, op, output_transfer);
}

/* What is put may be what the slot shows, as the weights are as a rule: nobody may write there until it has left. */
static xep_status_t flush_outputs(void *mode, xep_op_t *op)
{
    return op->combine == NULL ? XEP_OK : xep_step_flush(mode, op);
}

/* ---- step 3 ---- */

static const xep_offer_t *offer_of(const void *mode, const xep_op_t *op, uint32_t rank)
{
    return &line_from(mode, op, rank)->offer;
}

/* What is concluded is the same on all ranks that were told the same. */
static xep_status_t agree(void *opaque, xep_op_t *op)
{
    static const xep_agree_param_t params[] = {
        XEP_AGREE_PARAM("whether a piece has outputs", XEP_AGREE_YES_NO, xep_offer_t, params[XEP_OFFER_FLAGS]),
        XEP_AGREE_PARAM("dtype", XEP_AGREE_DTYPE, xep_offer_t, params[XEP_OFFER_DTYPE]),
        XEP_AGREE_PARAM("hidden", XEP_AGREE_NUMBER, xep_offer_t, params[XEP_OFFER_HIDDEN]),
        XEP_AGREE_PARAM("whether there are topk_weights", XEP_AGREE_YES_NO, xep_offer_t, params[XEP_OFFER_WEIGHTS]),
    };
    normal_t *mode = opaque;
    normal_state_t *state = normal_state(op);
    xep_status_t status = xep_offers_take(&mode->kit, op, offer_of, params, sizeof params / sizeof params[0]);
    if (status != XEP_OK) return status;
    state->concluded_piece = state->piece << 32 | (uint32_t)state->kit.verdict;
    return state->kit.verdict == XEP_OK ? normal_find_places(mode, op) : XEP_OK;
}

/* ---- steps 4 and 5 ---- */

static void store_arrived(const void *opaque, const xep_op_t *op, uint32_t rank)
{
    const normal_t *mode = opaque;
    uint64_t line = line_there(mode, op, rank);
    memcpy(mode->kit.base[rank] + line + offsetof(normal_piece_line_t, concluded), &normal_state(op)->concluded_piece,
           sizeof(uint64_t));
    xep_kit_signal(&mode->kit, rank, line + offsetof(normal_piece_line_t, arrived), op->epoch);
}

static int arrived_transfer(const void *opaque, const xep_op_t *op, uint32_t rank, uint32_t number,
                            xep_transfer_t *transfer)
{
    const normal_t *mode = opaque;
    const uint32_t rows = normal_rows_transfers(mode, op);
    if (xep_kit_state(op)->verdict != XEP_OK) number += rows;
    if (number < rows) normal_rows_transfer(mode, op, rank, number, transfer);
    else
        *transfer = signal_transfer(line_there(mode, op, rank), &normal_state(op)->concluded_piece, sizeof(uint64_t),
                                    offsetof(normal_piece_line_t, concluded), offsetof(normal_piece_line_t, arrived),
                                    op->epoch);
    return number <= rows;
}

/*
 * After an error no rows move, but arrived goes out all the same: the others wait for it, whatever they have
 * concluded.
 */
static xep_status_t move(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    xep_status_t status = XEP_OK;
    if (xep_kit_state(op)->verdict == XEP_OK) status = normal_move_rows_of_piece(mode, op, arrived_transfer);
    return status == XEP_OK ? xep_step_send(mode, op) : status;
}

/* Copied before it is looked at. A rank that was told something else has moved other rows, or none. */
static xep_status_t show(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    for (uint32_t r = 0; r < mode->kit.shape->nranks; r++) {
        uint64_t theirs = line_from(mode, op, r)->concluded;
        if (theirs != normal_state(op)->concluded_piece)
            return mode->kit.env->fail(mode->kit.env, op, XEP_ERR_PROTOCOL,
                                       "rank %u was told other outputs: piece %llu, %d (piece %llu, %d, as rank %u)", r,
                                       (unsigned long long)(theirs >> 32), (int)(uint32_t)theirs,
                                       (unsigned long long)normal_state(op)->piece, (int)xep_kit_state(op)->verdict,
                                       mode->kit.shape->rank);
    }
    return xep_kit_state(op)->verdict == XEP_OK ? normal_show_piece(mode, op) : XEP_OK;
}

const xep_step_t normal_next_steps[] = {
    {.name = "outputs", .does = "return outputs", .run = return_outputs},
    {.name = "outputs to go out", .does = "put outputs", .run = put_outputs},
    {.name = "outputs that leave", .does = "flush outputs", .run = flush_outputs},
    {.name = "openings to go out",
     .does = "open",
     .run = xep_step_send,
     .store = store_opened,
     .transfers = opened_transfer},
    {.name = "openings", .does = "wait for openings", .run = xep_step_wait, .word = opened_word},
    {.name = "agreement", .does = "agree", .run = agree},
    {.name = "rows to go out", .does = "rows", .run = move, .store = store_arrived, .transfers = arrived_transfer},
    {.name = "rows of the piece", .does = "wait for rows", .run = xep_step_wait, .word = arrived_word},
    {.name = "the end of the piece", .does = "show", .run = show},
    {XEP_STEP_FLUSH},
    {0},
};

/*
 * Without rows there is no opinion on weights; without outputs, none on what they are. Whether there are outputs is
 * asked of all, ranks without rows among them.
 */
static void make_offer(xep_op_t *op)
{
    const xep_combine_args_t *args = op->combine;
    uint32_t weights = XEP_AGREE_ANY;
    if (args != NULL && op->recv->rows != 0) weights = args->topk_weights != NULL;
    xep_kit_state(op)->offer =
        (xep_offer_t){.epoch = op->epoch,
                      .params = {[XEP_OFFER_DTYPE] = args != NULL ? args->dtype : XEP_AGREE_ANY,
                                 [XEP_OFFER_HIDDEN] = args != NULL ? args->hidden : XEP_AGREE_ANY,
                                 [XEP_OFFER_WEIGHTS] = weights,
                                 [XEP_OFFER_FLAGS] = args != NULL},
                      .refused = op->refused};
}

xep_status_t normal_next(void *mode, xep_op_t *op)
{
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    if (op->dispatch->quant != XEP_QUANT_NONE) op->dispatch = &slot->cast;
    normal_state(op)->piece = slot->piece + 1;
    /* what the records of the dispatch have said of all ranks: next asks nobody again */
    normal_state(op)->weighted = slot->weighted;
    make_offer(op);
    return xep_steps_begin(mode, op);
}
