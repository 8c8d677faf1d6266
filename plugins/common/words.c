/* SPDX-License-Identifier: BSD-3-Clause */

#include "words.h"

#include <stdio.h>

int xep_words_arrived(xep_word_fn word, const void *mode, const xep_op_t *op, uint32_t nranks, uint32_t *arrived)
{
    uint64_t value;
    for (; *arrived < nranks; ++*arrived) {
        const _Atomic uint64_t *seen = word(mode, op, *arrived, &value);
        if (atomic_load_explicit(seen, memory_order_acquire) < value) return 0;
    }
    return 1;
}

void xep_words_explain(xep_word_fn word, const void *mode, const xep_op_t *op, uint32_t nranks, const char *what, char *text,
                       size_t bytes)
{
    const char *before = ":";
    uint64_t value;
    int used = snprintf(text, bytes, "epoch %llu waits for %s", (unsigned long long)op->epoch, what);
    for (uint32_t r = 0; word != NULL && r < nranks && used >= 0 && (size_t)used < bytes; r++) {
        uint64_t seen = atomic_load_explicit(word(mode, op, r, &value), memory_order_relaxed);
        if (seen >= value) continue;
        used += snprintf(text + used, bytes - (size_t)used, "%s rank %u at %llu of %llu", before, r, (unsigned long long)seen,
                         (unsigned long long)value);
        before = ",";
    }
}
