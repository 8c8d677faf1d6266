/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Going on without ranks, for modes whose peers are all mapped: the line with a rank's word, and what that announces,
 * has the same offset in every heap, and its writer has written all its rows before the first of these lines. So any
 * rank's copy of the line is as good as one's own, and it can be read even if its writer, or the rank that has it, is
 * dead.
 */
#ifndef XEP_MASKS_H
#define XEP_MASKS_H

#include "kit.h"

/** Whether a rank is out of all that begins (xep_env_t.out). */
static inline int xep_kit_is_out(const xep_kit_t *kit, uint32_t rank)
{
    return kit->env->out != NULL && kit->env->out[rank] != 0;
}

/**
 * For xep_plugin_t.masks: works by the word of the step that says what it announces; there is no other word. The
 * verdict is for operations that decide in the next step, and that use op's adopted decision first.
 */
xep_holds_t xep_kit_holds(void *mode, const xep_op_t *op, uint32_t rank);
xep_status_t xep_kit_fetch(void *mode, xep_op_t *op, uint32_t rank);
xep_status_t xep_kit_verdict(void *mode, const xep_op_t *op);

/** The word that drain waits for, of ranks that read; and xep_mask_ops_t.reads: one that is out does not. */
const _Atomic uint64_t *xep_masks_read_word(const void *mode, const xep_op_t *op, uint32_t rank, uint64_t *value_p);
int xep_masks_reads(void *mode, uint32_t slot, uint32_t rank);

/** Fills the caller's "missing": which selections [tokens][topk] of this rank are not in their sums. */
void xep_masks_tell_missing(const xep_kit_t *kit, const xep_op_t *op, const int32_t *experts, uint64_t tokens,
                            uint32_t topk);

/** Where all operations decide so, and their rows arrive before the word. */
__attribute__((visibility("hidden"))) extern const xep_mask_ops_t xep_kit_masks;

#endif
