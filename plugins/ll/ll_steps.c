/* SPDX-License-Identifier: BSD-3-Clause */

/* The steps of both operations, and what they wait for. */
#include "ll.h"

xep_status_t ll_wire_status(ll_t *mode, xep_op_t *op, xep_status_t status)
{
    return status < 0 ? mode->env->fail(mode->env, op, status, "the wire to ranks that are not mapped failed") : status;
}

xep_status_t ll_flush(ll_t *mode, xep_op_t *op)
{
    if (mode->all_mapped) return XEP_OK;
    return ll_wire_status(mode, op, mode->env->wire->ops->flush(mode->env->wire));
}

xep_status_t ll_wait(ll_t *mode, xep_op_t *op)
{
    if (xep_words_arrived(mode->env, ll_step(op)->word, mode, op)) return XEP_OK;
    /* what the wire holds back may be what the others wait for */
    xep_status_t status = ll_flush(mode, op);
    return status < 0 ? status : XEP_INPROGRESS;
}

static const _Atomic uint64_t *notice_word(const void *opaque, const xep_op_t *op, uint32_t rank, uint64_t *value_p)
{
    const ll_t *mode = opaque;
    const ll_notice_t *notice = ll_own(mode, ll_notice_offset(mode, op->turn, rank));
    *value_p = op->epoch;
    return &notice->epoch;
}

static const _Atomic uint64_t *read_word(const void *opaque, const xep_op_t *op, uint32_t rank, uint64_t *value_p)
{
    const ll_t *mode = opaque;
    const ll_mail_t *mail = ll_own(mode, ll_mail_offset(mode, op->slot, rank));
    *value_p = mode->slots[op->slot].combined;
    return &mail->read;
}

static const _Atomic uint64_t *ready_word(const void *opaque, const xep_op_t *op, uint32_t rank, uint64_t *value_p)
{
    const ll_t *mode = opaque;
    const ll_mail_t *mail = ll_own(mode, ll_mail_offset(mode, mode->slots[op->slot].from[rank].slot, rank));
    *value_p = op->epoch;
    return &mail->ready;
}

const ll_step_t ll_dispatch_steps[] = {
    {.name = "room to send rows", .run = ll_put_parcels, .sends = 1},
    {.name = "rows", .run = ll_wait, .word = notice_word},
    {.name = "copies", .run = ll_receive},
    {.name = "rows to leave", .run = ll_flush},
    {0},
};

const ll_step_t ll_combine_steps[] = {
    {.name = "the last combine of the slot to be read", .run = ll_drain, .word = read_word, .sends = 1},
    {.name = "copies", .run = ll_offer, .sends = 1},
    {.name = "room to send rows", .run = ll_put_rows, .sends = 1},
    {.name = "expert outputs", .run = ll_wait, .word = ready_word},
    {.name = "sums", .run = ll_sum},
    {.name = "room to say that rows were read", .run = ll_put_read},
    {.name = "rows to leave", .run = ll_flush},
    {0},
};
