/* SPDX-License-Identifier: BSD-3-Clause */

/** The sums and weights that a combine must give. */
#ifndef ORACLE_COMBINE_H
#define ORACLE_COMBINE_H

#include "oracle_data.h"
#include "oracle_differ.h"

/**
 * Sums [T][H]: +0, bias 0 with bit 0 of biases, bias 1 with bit 1, then the outputs of the ranks a token went to,
 * ascending by rank, in fp32, rounded once to nearest even; with nodes, ascending by node: the outputs of the own
 * node's ranks one by one, and of every other node their sum, which was rounded once. By expert: biases, then
 * fma(weight, output, sum) by ascending k, of rows as combine_quant leaves them where encoded_from says so; with
 * sum_at_owner, by ascending ranks, the sums of their outputs by ascending k, rounded and encoded. With instances and
 * by rank, the outputs of its experts in any order. 0, or 1 and the first difference.
 */
int oracle_check_combine(const oracle_shape_t *shape, uint32_t rank, unsigned biases, const void *out,
                         size_t out_stride, oracle_difference_t *difference_p);

/** By rank: weights [T][K], the sum of what the ranks sent back. */
int oracle_check_weights(const oracle_shape_t *shape, uint32_t rank, const float *out, size_t out_stride,
                         oracle_difference_t *difference_p);

#endif
