/* SPDX-License-Identifier: BSD-3-Clause */

/* The word comes last: this rank may look for it from another call at any time. */
#include "masks.h"

#include <stdatomic.h>
#include <string.h>

#include "handshake.h"
#include "kit.h"

/* The word that says that all rows of a rank are here, at whatever step op is. */
static const xep_step_t *last_word_step(const xep_kit_t *kit, const xep_op_t *op)
{
    const xep_step_t *step = xep_steps_at(kit, op) - xep_kit_state(op)->step;
    while (step->announced.bytes == 0) step++;
    return step;
}

xep_holds_t xep_kit_holds(void *mode, const xep_op_t *op, uint32_t rank)
{
    uint64_t value;
    const _Atomic uint64_t *word = last_word_step(mode, op)->word(mode, op, rank, &value);
    return atomic_load_explicit(word, memory_order_acquire) >= value ? XEP_HOLDS_ALL : XEP_HOLDS_NOTHING;
}

/*
 * A rank writes the lines of one operation at all ranks before those of its next one. So where this rank lacks a word,
 * no other one has a later one in this line. What is copied here the writer may be writing, too, if it is alive after
 * all: the same bytes.
 */
xep_status_t xep_kit_fetch(void *mode, xep_op_t *op, uint32_t rank)
{
    const xep_kit_t *kit = mode;
    const xep_step_t *step = last_word_step(kit, op);
    uint64_t value;
    const _Atomic uint64_t *word = step->word(kit, op, rank, &value);
    if (atomic_load_explicit(word, memory_order_acquire) >= value) return XEP_OK;
    uint64_t at = (uint64_t)((const char *)word - kit->own);
    for (uint32_t r = 0; r < kit->shape->nranks; r++) {
        const char *there = kit->base[r] + at;
        uint64_t said = atomic_load_explicit((const _Atomic uint64_t *)(const void *)there, memory_order_acquire);
        if (said < value) continue;
        memcpy(kit->own + at + step->announced.offset, there + step->announced.offset, step->announced.bytes);
        xep_kit_signal(kit, kit->shape->rank, at, said);
        return XEP_OK;
    }
    return kit->env->fail(kit->env, op, XEP_ERR_PROTOCOL, "the flag of rank %u is lost: no rank that saw it is left",
                          rank);
}

/* A step that waits for words is left when all are here, and what follows concludes from them in the same call. */
xep_status_t xep_kit_verdict(void *mode, const xep_op_t *op)
{
    const xep_kit_t *kit = mode;
    return xep_steps_at(kit, op) > last_word_step(kit, op) ? xep_kit_state(op)->verdict : XEP_INPROGRESS;
}

/* One that is out may still take part in an operation in flight, but it reads no more, or finds that it was told so. */
const _Atomic uint64_t *xep_masks_read_word(const void *mode, const xep_op_t *op, uint32_t rank, uint64_t *value_p)
{
    const _Atomic uint64_t *word = xep_combine_read_word(mode, op, rank, value_p);
    if (xep_kit_is_out(mode, rank)) *value_p = 0;
    return word;
}

int xep_masks_reads(void *mode, uint32_t slot, uint32_t rank)
{
    const xep_op_t last = {.slot = slot};
    uint64_t value;
    return atomic_load_explicit(xep_masks_read_word(mode, &last, rank, &value), memory_order_acquire) < value;
}

void xep_masks_tell_missing(const xep_kit_t *kit, const xep_op_t *op, const int32_t *experts, uint64_t tokens,
                            uint32_t topk)
{
    const xep_combine_args_t *args = op->combine;
    for (uint64_t t = 0; t < tokens; t++, experts += topk)
        for (uint32_t k = 0; k < topk; k++)
            args->missing[t * args->missing_stride + k] =
                experts[k] >= 0 && xep_op_is_without(op, kit->owner[experts[k]]);
}

const xep_mask_ops_t xep_kit_masks = {.holds = xep_kit_holds,
                                      .fetch = xep_kit_fetch,
                                      .verdict = xep_kit_verdict,
                                      .reads = xep_masks_reads};
