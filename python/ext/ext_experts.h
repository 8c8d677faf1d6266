/* SPDX-License-Identifier: BSD-3-Clause */

/** Received rows of mode normal, arranged by expert, and summed again: copies on this rank, in host memory. */
#ifndef EXT_EXPERTS_H
#define EXT_EXPERTS_H

#include "ext_args.h"
#include "ext_python.h"

/** The K slots of a row in a matrix [N, K] int64: one for each selection, -1 if this rank does not have its expert. */
static inline int64_t *ext_slots_of_row(const ext_matrix_t *slots, Py_ssize_t row)
{
    return (int64_t *)(void *)(slots->data + row * slots->stride);
}

/** Each row of to is the sum of its slots in from, k ascending, in fp32, rounded once. terms: room for K + 1. */
void ext_sum_rows(const ext_matrix_t *to, const ext_matrix_t *from, const ext_matrix_t *slots, const char **terms);

#endif
