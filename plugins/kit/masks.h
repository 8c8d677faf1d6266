/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Going on without ranks, for modes whose peers are all mapped: the line in which a rank writes its word, and what that
 * announces, has the same offset in every heap, and its writer has written all else that it brings before the first of
 * these lines. So any rank's copy of the line is as good as the own one, and it can be read when its writer, or the
 * rank that has it, is dead.
 */
#ifndef XEP_MASKS_H
#define XEP_MASKS_H

#include <xep/plugin.h>

/**
 * For xep_plugin_t.masks: by the word of the step that says what it announces; there is no other word. Anywhere: of a
 * mode that concludes in the step behind, where rows are here with their word, and that asks op's ruling first; its
 * peers may also be unmapped.
 */
__attribute__((visibility("hidden"))) extern const xep_mask_ops_t xep_kit_masks, xep_kit_masks_anywhere;

#endif
