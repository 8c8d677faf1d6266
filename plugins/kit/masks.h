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
 * For xep_plugin_t.masks: works by the word of the step that says what it announces; there is no other word.
 * xep_kit_masks_anywhere: for modes that decide in the next step, whose rows arrive before the word, and that use op's
 * adopted decision first; their peers may also be unmapped.
 */
__attribute__((visibility("hidden"))) extern const xep_mask_ops_t xep_kit_masks, xep_kit_masks_anywhere;

#endif
