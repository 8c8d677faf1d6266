/* SPDX-License-Identifier: BSD-3-Clause */

#include "waits_books.h"

#include <string.h>

#include "mp_rig.h"

void books_begin(books_t *books)
{
    memset(books->last, 0, sizeof books->last);
    books->called_ns = 0;
}

void books_enter(books_t *books, xep_op_kind_t kind)
{
    books->operations[kind]++;
    for (uint32_t r = 0; r < mp_nranks(); r++) {
        uint64_t ns = books->last[r];
        MP_CHECK(ns <= books->called_ns);
        books->sum_ns[kind][r] += ns;
        books->count[kind][r] += ns > 0;
        if (ns > books->max_ns[kind][r]) books->max_ns[kind][r] = ns;
    }
}

void books_check(const books_t *books)
{
    for (xep_op_kind_t kind = XEP_OP_DISPATCH; kind <= XEP_OP_COMBINE; kind++) {
        uint64_t operations, count[BOOKS_RANKS], sum_ns[BOOKS_RANKS], max_ns[BOOKS_RANKS];
        xep_waits_t waits = XEP_WAITS_INIT;
        waits.operations = &operations, waits.count = count, waits.sum_ns = sum_ns, waits.max_ns = max_ns;
        MP_OK(xep_buffer_waits(books->buffer, kind, &waits));
        MP_CHECK(operations == books->operations[kind]);
        MP_CHECK(memcmp(count, books->count[kind], mp_nranks() * sizeof *count) == 0);
        MP_CHECK(memcmp(sum_ns, books->sum_ns[kind], mp_nranks() * sizeof *sum_ns) == 0);
        MP_CHECK(memcmp(max_ns, books->max_ns[kind], mp_nranks() * sizeof *max_ns) == 0);
    }
}
