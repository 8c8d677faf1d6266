/* SPDX-License-Identifier: BSD-3-Clause */

/** The first thing that is wrong, how the oracle's checks note it, and how it is said. */
#ifndef ORACLE_DIFFER_H
#define ORACLE_DIFFER_H

#include <stddef.h>
#include <stdint.h>

#include <xep/xep.h>

/** Plain bytes, so that ranks can exchange it. */
typedef struct oracle_difference {
    uint64_t found; /* 0: nothing is wrong and the rest is not set */
    uint64_t row;   /* of the array; 0 for a single value */
    uint64_t column;
    uint32_t rank;     /* that holds it */
    uint32_t src_rank; /* of the row, with has_source */
    uint64_t src_token;
    uint64_t has_source;
    char array[24]; /* "x", "topk_idx", ..: the field of xep_recv_t or of the args */
    char expected[32], got[32];
} oracle_difference_t;

/** Notes and returns 1. Texts are cut to what oracle_difference_t holds. */
int oracle_differ(oracle_difference_t *difference, const char *array, uint64_t row, uint64_t column,
                  const char *expected, const char *got);

/** Signed whole numbers; returns 0 when they are equal. */
int oracle_differ_number(oracle_difference_t *difference, const char *array, uint64_t row, uint64_t column,
                         int64_t expected, int64_t got);

/** The first element that differs, bit for bit; returns 0 when there is none. */
int oracle_differ_row(oracle_difference_t *difference, const char *array, uint64_t row, xep_dtype_t dtype,
                      uint32_t hidden, const void *expected, const void *got);

/** What is compared next came from a token, or from nobody in particular. */
void oracle_differ_source(oracle_difference_t *difference, uint32_t src_rank, uint64_t src_token);
void oracle_differ_no_source(oracle_difference_t *difference);

/** As a sentence: "rank 2: x row 17 column 4095 is .., expected .. (token 33 of rank 1)". */
void oracle_difference_text(const oracle_difference_t *difference, char *text, size_t bytes);

#endif
