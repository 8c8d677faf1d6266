/* SPDX-License-Identifier: BSD-3-Clause */

#include "oracle_payloads.h"

#include "oracle_cast.h"
#include "oracle_number.h"
#include "oracle_random.h"

size_t oracle_scales_bytes(const oracle_shape_t *shape)
{
    return shape->nscales == 0 ? 0 : shape->nscales * oracle_element_bytes(shape->scales_dtype);
}

uint64_t oracle_align_payload(uint64_t bytes, const xep_payload_t *payload)
{
    const uint64_t alignment = payload->alignment != 0 ? payload->alignment : 1;
    return (bytes + alignment - 1) / alignment * alignment;
}

/* The scales of a cast are words; the payloads follow, each at a multiple of its alignment, and as long as one. */
uint32_t oracle_words_beside(const oracle_shape_t *shape)
{
    uint64_t bytes =
        shape->quant != XEP_QUANT_NONE ? oracle_received_scales(shape) * UINT64_C(4) : oracle_scales_bytes(shape);
    for (uint32_t i = 0; i < shape->npayloads; i++) {
        const xep_payload_t *payload = &shape->payloads[i];
        bytes = oracle_align_payload(bytes, payload) + oracle_align_payload(payload->bytes, payload);
    }
    return (uint32_t)((bytes + 3) / 4);
}

void oracle_fill_payload(const oracle_shape_t *shape, uint32_t which, uint32_t rank, uint64_t token, void *to)
{
    uint64_t state = oracle_stream(shape->payload, ORACLE_KIND_BESIDE + which, rank, token);
    for (uint32_t i = 0; i < shape->payloads[which].bytes; i++) ((uint8_t *)to)[i] = (uint8_t)oracle_next(&state);
}
