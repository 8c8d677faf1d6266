/* SPDX-License-Identifier: BSD-3-Clause */

/** What travels beside rows: its bytes, and the contents and the check of payloads. */
#ifndef ORACLE_PAYLOADS_H
#define ORACLE_PAYLOADS_H

#include "oracle_check.h"

/** Bytes of the scales of a token, as the caller has them. */
size_t oracle_scales_bytes(const oracle_shape_t *shape);

/** What params.scales must be at least. */
uint32_t oracle_words_beside(const oracle_shape_t *shape);

/** Payload number "which" of a token. */
void oracle_fill_payload(const oracle_shape_t *shape, uint32_t which, uint32_t rank, uint64_t token, void *to);

/** Those of a row that a token must be: 0, or 1 and the difference is noted. */
int oracle_check_payloads(const oracle_check_t *check, uint64_t row, uint32_t src, uint64_t token);

#endif
