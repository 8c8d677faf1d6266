/* SPDX-License-Identifier: BSD-3-Clause */

/** What travels beside rows: its bytes, and the contents of payloads. */
#ifndef ORACLE_PAYLOADS_H
#define ORACLE_PAYLOADS_H

#include "oracle_data.h"

/** Bytes of the scales of a token, as the caller has them. */
size_t oracle_scales_bytes(const oracle_shape_t *shape);

/** What params.scales must be at least. */
uint32_t oracle_words_beside(const oracle_shape_t *shape);

/** Payload number "which" of a token. */
void oracle_fill_payload(const oracle_shape_t *shape, uint32_t which, uint32_t rank, uint64_t token, void *to);

/** So many bytes, rounded up to its alignment. */
uint64_t oracle_align_payload(uint64_t bytes, const xep_payload_t *payload);

#endif
