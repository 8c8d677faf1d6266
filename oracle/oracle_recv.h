/* SPDX-License-Identifier: BSD-3-Clause */

/** All that a dispatch must have brought to a rank. */
#ifndef ORACLE_RECV_H
#define ORACLE_RECV_H

#include "oracle_data.h"
#include "oracle_differ.h"

/** 0, or 1 and the first difference. */
int oracle_check_recv(const oracle_shape_t *shape, uint32_t rank, const xep_recv_t *recv,
                      oracle_difference_t *difference_p);

/**
 * Rows that a rank must have room for: all it receives, with those that alignment leaves unused; padded: those of the
 * expert that gets most.
 */
uint64_t oracle_rows_needed(const oracle_shape_t *shape, uint32_t rank);

#endif
