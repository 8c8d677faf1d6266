/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Words that other ranks write, in this rank's heap or in one that it maps, and that only grow: waiting for them, and
 * saying for which.
 */
#ifndef XEP_WORDS_H
#define XEP_WORDS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <xep/plugin.h>

/** Words that count rows of an operation: they only grow. The count saturates. */
static inline uint64_t xep_rows_word(uint64_t epoch, uint64_t rows)
{
    const uint64_t most = (UINT64_C(1) << XEP_FEED_ROWS_BITS) - 1;
    return epoch << XEP_FEED_ROWS_BITS | (rows < most ? rows : most);
}

static inline uint64_t xep_rows_epoch(uint64_t word)
{
    return word >> XEP_FEED_ROWS_BITS;
}

/** The rows in a word, if it is of this epoch; an older one has none of them. */
static inline uint64_t xep_rows_of(uint64_t word, uint64_t epoch)
{
    return xep_rows_epoch(word) == epoch ? word & ((UINT64_C(1) << XEP_FEED_ROWS_BITS) - 1) : 0;
}

/** The word that a rank writes for this operation, and the value from which on it has arrived. */
typedef const _Atomic uint64_t *(*xep_word_fn)(const void *mode, const xep_op_t *op, uint32_t rank, uint64_t *value_p);

/**
 * Whether the words of all ranks have arrived. Ranks whose words are missing are op's late ranks from then on; when a
 * word comes, the time that it kept a caller waiting is booked for its rank. word must be the same until all have
 * arrived.
 */
int xep_words_arrived(const xep_env_t *env, xep_word_fn word, const void *mode, xep_op_t *op);

/**
 * Whether the words of all ranks arrive within so many looks, which neither read the clock nor make a list: a rank that
 * is late for no longer is not late.
 */
int xep_words_arrive_soon(xep_word_fn word, const void *mode, const xep_op_t *op, uint32_t looks);

/**
 * As xep_words_arrived(), if some ranks are heard through others. through: [R] the rank through which one is heard;
 * XEP_NO_RANK, or the rank itself: directly. If that one is late, the ranks heard through it do not count as late.
 */
int xep_words_arrived_through(const xep_env_t *env, xep_word_fn word, const uint32_t *through, const void *mode,
                              xep_op_t *op);

/** Whether the words of a rank come to this one, self, through another one. */
int xep_words_are_through(const uint32_t *through, uint32_t self, uint32_t rank);

/** What a wait for words says of itself. */
typedef struct xep_words_wait {
    xep_word_fn word; /* NULL: no ranks are named */
    const char *what; /* is waited for */
    uint32_t nranks, rank;
    const uint32_t *through; /* NULL: all are heard directly */
    uint8_t counts_rows;     /* the words do, as xep_rows_word(); else they are epochs */
} xep_words_wait_t;

/** "epoch 7 waits for rows: rank 1 at 5 of 7, rank 3 at 5 of 7 (through rank 1)", cut to bytes. */
void xep_words_explain(const xep_words_wait_t *wait, const void *mode, const xep_op_t *op, char *text, size_t bytes);

#endif
