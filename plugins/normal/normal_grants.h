/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Grants of a dispatch: where rows go that their sources cannot place themselves.
 */
#ifndef XEP_NORMAL_GRANTS_H
#define XEP_NORMAL_GRANTS_H

#include "normal_shared.h"

/** Once the records are taken: whether this rank cannot know where its rows go, and those of others have come. */
int normal_must_ask(const normal_t *mode, const xep_op_t *op);

/** Step: the dispatch begins. */
xep_status_t normal_note_outs(void *mode, xep_op_t *op);

/** Step: asks all ranks for room, if it must. */
xep_status_t normal_ask_for_grants(void *mode, xep_op_t *op);

/** Step, which has granted_word: until this rank knows where its rows go. */
xep_status_t normal_await_grants(void *mode, xep_op_t *op);
const _Atomic uint64_t *normal_granted_word(const void *mode, const xep_op_t *op, uint32_t rank, uint64_t *value_p);

/** Tells ranks that ask where their rows go, for as long as op waits: they may ask at any time. XEP_OK, or an error. */
xep_status_t normal_serve_grants(normal_t *mode, xep_op_t *op);

/** Whether all have put their rows where this rank has granted it, if it has. XEP_ERR_PROTOCOL: one has not. */
xep_status_t normal_check_begins(const normal_t *mode, xep_op_t *op);

/** What a combine stores with its offer; and the step that takes where mapped owners have rows of this rank. */
void normal_store_offer_and_begin(const void *mode, const xep_op_t *op, uint32_t rank);
xep_status_t normal_take_begins(void *mode, xep_op_t *op);

#endif
