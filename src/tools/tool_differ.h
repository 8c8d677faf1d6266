/* SPDX-License-Identifier: BSD-3-Clause */

/** How the oracle's checks note the first difference. */
#ifndef TOOL_DIFFER_H
#define TOOL_DIFFER_H

#include "tool_oracle.h"

/** All note and return 1. Texts are cut to what tool_difference_t holds. */
int tool_differ(tool_difference_t *difference, const char *array, uint64_t row, uint64_t column, const char *expected,
                const char *got);

/** Signed whole numbers; returns 0 when they are equal. */
int tool_differ_number(tool_difference_t *difference, const char *array, uint64_t row, uint64_t column,
                       int64_t expected, int64_t got);

/** The first element that differs, bit for bit; returns 0 when there is none. */
int tool_differ_row(tool_difference_t *difference, const char *array, uint64_t row, xep_dtype_t dtype, uint32_t hidden,
                    const void *expected, const void *got);

#endif
