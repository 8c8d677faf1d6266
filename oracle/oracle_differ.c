/* SPDX-License-Identifier: BSD-3-Clause */

/* Only the first difference is kept: one wrong place usually makes thousands, and the first one tells where to look. */
#include "oracle_differ.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "oracle_number.h"

/*
 * rank and the source stay as they are: whoever opens the check sets the rank, and the source is noted before a row is
 * compared.
 */
int oracle_differ(oracle_difference_t *difference, const char *array, uint64_t row, uint64_t column,
                  const char *expected, const char *got)
{
    difference->found = 1;
    difference->row = row;
    difference->column = column;
    snprintf(difference->array, sizeof difference->array, "%s", array);
    snprintf(difference->expected, sizeof difference->expected, "%s", expected);
    snprintf(difference->got, sizeof difference->got, "%s", got);
    return 1;
}

int oracle_differ_number(oracle_difference_t *difference, const char *array, uint64_t row, uint64_t column,
                         int64_t expected, int64_t got)
{
    char expected_text[24], got_text[24];

    if (expected == got) return 0;
    snprintf(expected_text, sizeof expected_text, "%" PRId64, expected);
    snprintf(got_text, sizeof got_text, "%" PRId64, got);
    return oracle_differ(difference, array, row, column, expected_text, got_text);
}

/*
 * Bits and not values: -0 is not +0 here, and a NaN is equal to the same NaN. The element is looked for only when it is
 * known that there is one.
 */
int oracle_differ_row(oracle_difference_t *difference, const char *array, uint64_t row, xep_dtype_t dtype,
                      uint32_t hidden, const void *expected, const void *got)
{
    const size_t size = oracle_element_bytes(dtype);
    char expected_text[32], got_text[32];
    uint32_t column = 0;

    if (!memcmp(expected, got, hidden * size)) return 0;
    while (!memcmp((const char *)expected + column * size, (const char *)got + column * size, size)) column++;
    oracle_element_text(expected, column, dtype, expected_text, sizeof expected_text);
    oracle_element_text(got, column, dtype, got_text, sizeof got_text);
    return oracle_differ(difference, array, row, column, expected_text, got_text);
}

/* What is noted while has_source is set is said to come from this token, until oracle_differ_no_source(). */
void oracle_differ_source(oracle_difference_t *difference, uint32_t src_rank, uint64_t src_token)
{
    difference->has_source = 1;
    difference->src_rank = src_rank;
    difference->src_token = src_token;
}

void oracle_differ_no_source(oracle_difference_t *difference)
{
    difference->has_source = 0;
}

/* Of a row that came from somewhere it is said from where: that is mostly where the mistake is. */
void oracle_difference_text(const oracle_difference_t *difference, char *text, size_t bytes)
{
    const int used = snprintf(text, bytes, "rank %" PRIu32 ": %s row %" PRIu64 " column %" PRIu64 " is %s, expected %s",
                              difference->rank, difference->array, difference->row, difference->column, difference->got,
                              difference->expected);

    if (difference->has_source && used > 0 && (size_t)used < bytes)
        snprintf(text + used, bytes - (size_t)used, " (token %" PRIu64 " of rank %" PRIu32 ")", difference->src_token,
                 difference->src_rank);
}
