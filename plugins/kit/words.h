/* SPDX-License-Identifier: BSD-3-Clause */

/** Words that other ranks write in this rank's heap, and that only grow: waiting for them, and saying for which. */
#ifndef XEP_WORDS_H
#define XEP_WORDS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <xep/plugin.h>

/** The word that a rank writes for this operation, and the value from which on it has arrived. */
typedef const _Atomic uint64_t *(*xep_word_fn)(const void *mode, const xep_op_t *op, uint32_t rank, uint64_t *value_p);

/**
 * Whether the words of all ranks have arrived. Those that have not are op's late ranks from then on, and each is
 * booked the time it kept a caller waiting when its word comes, in whatever order they do. The same word until all
 * have arrived.
 */
int xep_words_arrived(const xep_env_t *env, xep_word_fn word, const void *mode, xep_op_t *op);

/** "epoch 7 waits for rows: rank 1 at 5 of 7, rank 3 at 5 of 7", cut to bytes. word may be NULL: no ranks are named. */
void xep_words_explain(xep_word_fn word, const void *mode, const xep_op_t *op, uint32_t nranks, const char *what,
                       char *text, size_t bytes);

#endif
