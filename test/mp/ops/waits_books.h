/* SPDX-License-Identifier: BSD-3-Clause */

/** What operations say they waited, kept beside the library, which must come to the same sums. */
#ifndef TEST_WAITS_BOOKS_H
#define TEST_WAITS_BOOKS_H

#include <xep/xep.h>

enum { BOOKS_RANKS = 16 /* most */, BOOKS_KINDS = 2 };

/** Of one buffer: what its operations said they waited, all together; and the last of them. */
typedef struct books {
    xep_buffer_t *buffer;
    uint64_t operations[BOOKS_KINDS], count[BOOKS_KINDS][BOOKS_RANKS];
    uint64_t sum_ns[BOOKS_KINDS][BOOKS_RANKS], max_ns[BOOKS_KINDS][BOOKS_RANKS];
    uint64_t last[BOOKS_RANKS]; /* added to by the operation in flight */
    uint64_t called_ns;         /* its calls that block have taken */
} books_t;

/** Before an operation, which adds to last. */
void books_begin(books_t *books);

/** The operation ended: its waits into the books; no rank was waited for longer than the calls took. */
void books_enter(books_t *books, xep_op_kind_t kind);

/** The buffer says the same, of dispatches and of combines. */
void books_check(const books_t *books);

#endif
