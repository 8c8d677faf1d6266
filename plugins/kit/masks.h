/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Going on without ranks, for modes whose peers are all mapped: the line with a rank's word, and what that announces,
 * has the same offset in every heap, and its writer has written all its rows before the first of these lines. So any
 * rank's copy of the line is as good as one's own, and it can be read even if its writer, or the rank that has it, is
 * dead.
 */
#ifndef XEP_MASKS_H
#define XEP_MASKS_H

#include <xep/plugin.h>

/**
 * For xep_plugin_t.masks: works by the word of the step that says what it announces; there is no other word. The
 * verdict is for operations that decide in the next step, and that use op's adopted decision first.
 */
xep_holds_t xep_kit_holds(void *mode, const xep_op_t *op, uint32_t rank);
xep_status_t xep_kit_fetch(void *mode, xep_op_t *op, uint32_t rank);
xep_status_t xep_kit_verdict(void *mode, const xep_op_t *op);

/** Where all operations decide so, and their rows arrive before the word. */
__attribute__((visibility("hidden"))) extern const xep_mask_ops_t xep_kit_masks;

#endif
