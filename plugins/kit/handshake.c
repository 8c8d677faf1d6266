/* SPDX-License-Identifier: BSD-3-Clause */

/* Everything that is copied out of shared memory is copied before it is checked: the peer may still write it. */
#include "handshake.h"

static uint64_t line_offset(const xep_kit_t *kit, uint32_t slot, uint32_t rank)
{
    return kit->layout->combine_line + ((uint64_t)slot * kit->shape->nranks + rank) * sizeof(xep_combine_line_t);
}

/* The offset of the line in which this rank tells rank that it has read its offer and its rows. */
static uint64_t read_offset(const xep_kit_t *kit, const xep_op_t *op, uint32_t rank)
{
    uint32_t there = *xep_combine_slot_there(kit, op->slot, rank);
    return line_offset(kit, there, kit->shape->rank) + offsetof(xep_combine_line_t, read);
}

/* Lines of this rank's own heap: the word and the offer in them are written by the rank they are indexed by. */
static const xep_combine_line_t *line_from(const xep_kit_t *kit, uint32_t slot, uint32_t rank)
{
    return xep_kit_own(kit, line_offset(kit, slot, rank));
}

/* ---- drain ---- */

const _Atomic uint64_t *xep_combine_read_word(const void *mode, const xep_op_t *op, uint32_t rank, uint64_t *value_p)
{
    const xep_kit_t *kit = mode;
    *value_p = kit->combined[op->slot];
    return &line_from(kit, op->slot, rank)->read;
}

/* The word of the step that drains. */
static xep_word_fn read_word(const xep_kit_t *kit)
{
    return kit->steps[XEP_OP_COMBINE]->word;
}

/*
 * Acquire: what this rank will write next into the input must not pass the loads of those who have read it. No words
 * are asked for where nothing was ever offered: they may be of a device.
 */
static int is_drained(const xep_kit_t *kit, uint32_t slot)
{
    const xep_op_t last = {.slot = slot};
    uint64_t value;
    for (uint32_t r = 0; r < kit->shape->nranks && kit->combined[slot] != 0; r++)
        if (atomic_load_explicit(read_word(kit)(kit, &last, r, &value), memory_order_acquire) < value) return 0;
    return 1;
}

xep_status_t xep_combine_input(void *mode, uint32_t slot, void **base_p, size_t *stride_p)
{
    xep_kit_t *kit = mode;
    if (!is_drained(kit, slot)) {
        /* those it waits for may wait in the same call, for what the wire holds here */
        xep_status_t status = xep_kit_flush(kit);
        return status < 0 ? status : XEP_INPROGRESS;
    }
    kit->combined[slot] = 0;
    *base_p = xep_kit_own_area(kit, kit->layout->input, slot);
    *stride_p = kit->layout->combine_stride;
    return XEP_OK;
}

static void explain_input(const xep_kit_t *kit, uint32_t slot, char *text, size_t bytes)
{
    xep_op_t last = {.kind = XEP_OP_COMBINE, .slot = slot, .epoch = kit->combined[slot]};
    xep_words_wait_t wait = {.word = read_word(kit), .what = "readers", .nranks = kit->shape->nranks};
    xep_words_explain(&wait, kit, &last, text, bytes);
}

void xep_combine_explain(void *mode, const xep_op_t *op, char *text, size_t bytes)
{
    if (op->state != NULL) xep_steps_explain(mode, op, text, bytes);
    else explain_input(mode, op->slot, text, bytes);
}

/*
 * There is no rank to wait for where the epoch is 0: nothing was ever offered from the slot, or its input was asked for
 * since, so that all have read. Their words are not looked at again, as they share lines with the offers that ranks
 * ahead are just writing. From here on op is the last combine of the slot: the next one waits for the readers of it.
 */
xep_status_t xep_combine_drain(void *mode, xep_op_t *op)
{
    xep_kit_t *kit = mode;
    xep_status_t status = kit->combined[op->slot] == 0 ? XEP_OK : xep_step_wait(mode, op);
    if (status == XEP_OK) kit->combined[op->slot] = op->epoch;
    return status;
}

/* ---- offer ---- */

/* The offer is made before anything is sent, in the state of the operation: puts read it until the wire is flushed. */
xep_status_t xep_combine_begin(void *mode, xep_op_t *op, uint32_t weights)
{
    const xep_combine_args_t *args = op->combine;
    xep_kit_state(op)->offer = (xep_offer_t){.epoch = op->epoch,
                                             .params = {[XEP_OFFER_DTYPE] = args->dtype,
                                                        [XEP_OFFER_HIDDEN] = args->hidden,
                                                        [XEP_OFFER_WEIGHTS] = weights,
                                                        [XEP_OFFER_FLAGS] = args->flags,
                                                        [XEP_OFFER_QUANT] = args->quant},
                                             .refused = op->refused};
    return xep_steps_begin(mode, op);
}

const char *xep_combine_outputs(const xep_kit_t *kit, const xep_op_t *op, size_t *stride_p)
{
    const xep_combine_args_t *args = op->combine;
    *stride_p = args->x != NULL ? args->x_stride : kit->layout->combine_stride;
    return args->x != NULL ? args->x : xep_kit_own_area(kit, kit->layout->input, op->slot);
}

/* To a mapped rank: the offer by plain stores, then the word with release, in one line of the reader's heap. */
void xep_combine_store_offer(const void *mode, const xep_op_t *op, uint32_t rank)
{
    const xep_kit_t *kit = mode;
    uint64_t offset = line_offset(kit, op->slot, kit->shape->rank);
    *(xep_offer_t *)(void *)(kit->base[rank] + offset + offsetof(xep_combine_line_t, offer)) = xep_kit_state(op)->offer;
    xep_kit_signal(kit, rank, offset + offsetof(xep_combine_line_t, ready), op->epoch);
}

void xep_combine_store_begin(const xep_kit_t *kit, const xep_op_t *op, uint32_t rank, uint64_t begin)
{
    uint64_t offset = line_offset(kit, op->slot, kit->shape->rank) + offsetof(xep_combine_line_t, begin);
    *(uint64_t *)(void *)(kit->base[rank] + offset) = begin;
}

uint64_t xep_combine_begin_at(const xep_kit_t *kit, const xep_op_t *op, uint32_t rank)
{
    return line_from(kit, *xep_combine_slot_there(kit, op->slot, rank), rank)->begin;
}

/* To any other rank: the wire delivers the word after the offer, and after all rows that were put there before. */
void xep_combine_offer_transfer(const xep_kit_t *kit, const xep_op_t *op, xep_transfer_t *transfer)
{
    uint64_t offset = line_offset(kit, op->slot, kit->shape->rank);
    *transfer = (xep_transfer_t){.signal = 1,
                                 .src = (const char *)&xep_kit_state(op)->offer,
                                 .bytes = sizeof(xep_offer_t),
                                 .offset = offset + offsetof(xep_combine_line_t, offer),
                                 .signal_offset = offset + offsetof(xep_combine_line_t, ready),
                                 .value = op->epoch};
}

/* ---- ready ---- */

const _Atomic uint64_t *xep_combine_ready_word(const void *mode, const xep_op_t *op, uint32_t rank, uint64_t *value_p)
{
    const xep_kit_t *kit = mode;
    *value_p = op->epoch;
    return &line_from(kit, *xep_combine_slot_there(kit, op->slot, rank), rank)->ready;
}

uint32_t xep_combine_offered(const xep_kit_t *kit, const xep_op_t *op, uint32_t rank, uint32_t param)
{
    return line_from(kit, *xep_combine_slot_there(kit, op->slot, rank), rank)->offer.params[param];
}

/*
 * All words of this epoch are there. Each offer is copied before it is looked at; one of another epoch means that its
 * writer broke the order that the protocol argues with, so nothing of it is used.
 */
static xep_status_t copy_offers(const xep_kit_t *kit, xep_op_t *op, xep_offer_t *offers)
{
    for (uint32_t i = 0; i < op->with.count; i++) {
        uint32_t r = op->with.rank[i];
        offers[r] = line_from(kit, *xep_combine_slot_there(kit, op->slot, r), r)->offer;
        if (offers[r].epoch != op->epoch)
            return kit->env->fail(kit->env, op, XEP_ERR_PROTOCOL,
                                  "invalid epoch in the offer of rank %u for a combine: %llu (%llu)", r,
                                  (unsigned long long)offers[r].epoch, (unsigned long long)op->epoch);
    }
    return XEP_OK;
}

static xep_status_t compare_offers(const xep_kit_t *kit, xep_op_t *op, const xep_offer_t *offers)
{
    static const xep_agree_param_t params[XEP_OFFER_PARAMS] = {
        XEP_AGREE_PARAM("dtype", XEP_AGREE_DTYPE, xep_offer_t, params[XEP_OFFER_DTYPE]),
        XEP_AGREE_PARAM("hidden", XEP_AGREE_NUMBER, xep_offer_t, params[XEP_OFFER_HIDDEN]),
        XEP_AGREE_PARAM("whether there are topk_weights", XEP_AGREE_YES_NO, xep_offer_t, params[XEP_OFFER_WEIGHTS]),
        XEP_AGREE_PARAM("flags", XEP_AGREE_NUMBER, xep_offer_t, params[XEP_OFFER_FLAGS]),
        XEP_AGREE_PARAM("quant", XEP_AGREE_NUMBER, xep_offer_t, params[XEP_OFFER_QUANT]),
    };
    if (op->is_ruled) return xep_agree_decision(kit->env, op);
    if (xep_agree_are_same(op, offers, sizeof *offers, sizeof *offers)) return XEP_OK;
    xep_status_t verdict = xep_agree_calls(kit->env, op, &offers->refused, sizeof *offers);
    return verdict == XEP_OK ? xep_agree(kit->env, op, params, XEP_OFFER_PARAMS, offers, sizeof *offers) : verdict;
}

xep_status_t xep_combine_take_offers(void *mode, xep_op_t *op)
{
    const xep_kit_t *kit = mode;
    xep_status_t status = copy_offers(kit, op, kit->offers);
    if (status == XEP_OK) xep_kit_state(op)->verdict = compare_offers(kit, op, kit->offers);
    return status;
}

/* ---- read ---- */

/* The loads of the rows come before this: the word is stored with release. */
static void store_read(const void *mode, const xep_op_t *op, uint32_t rank)
{
    xep_kit_signal(mode, rank, read_offset(mode, op, rank), op->epoch);
}

/*
 * The owner waits for it when it next combines from the slot, and every rank's part in the operation before that takes
 * it there, or a flush does. So it costs no message of its own; and a combine may end though it is still here, where a
 * rank that has ended its own is in no call of ours.
 */
static int read_transfer(const void *mode, const xep_op_t *op, uint32_t rank, uint32_t number, xep_transfer_t *transfer)
{
    *transfer =
        (xep_transfer_t){.signal = 1, .later = 1, .signal_offset = read_offset(mode, op, rank), .value = op->epoch};
    return number == 0;
}

xep_status_t xep_combine_tell_read(void *mode, xep_op_t *op)
{
    return xep_send(mode, op, store_read, read_transfer);
}
