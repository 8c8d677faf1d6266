/* SPDX-License-Identifier: BSD-3-Clause */

#include "oracle_payloads.h"

#include <stdlib.h>

#include "oracle_alloc.h"
#include "oracle_cast.h"
#include "oracle_number.h"
#include "oracle_random.h"

size_t oracle_scales_bytes(const oracle_shape_t *shape)
{
    return shape->nscales == 0 ? 0 : shape->nscales * oracle_element_bytes(shape->scales_dtype);
}

static uint64_t align(uint64_t bytes, const xep_payload_t *payload)
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
        bytes = align(bytes, payload) + align(payload->bytes, payload);
    }
    return (uint32_t)((bytes + 3) / 4);
}

void oracle_fill_payload(const oracle_shape_t *shape, uint32_t which, uint32_t rank, uint64_t token, void *to)
{
    uint64_t state = oracle_stream(shape->payload, ORACLE_KIND_BESIDE + which, rank, token);
    for (uint32_t i = 0; i < shape->payloads[which].bytes; i++) ((uint8_t *)to)[i] = (uint8_t)oracle_next(&state);
}

int oracle_check_payloads(const oracle_check_t *check, uint64_t row, uint32_t src, uint64_t token)
{
    const oracle_shape_t *shape = check->shape;
    const xep_recv_t *recv = check->recv;
    int differs = oracle_check_number(check, "npayloads", row, 0, shape->npayloads, recv->npayloads);
    for (uint32_t i = 0; i < shape->npayloads && !differs; i++) {
        const xep_payload_t *sent = &shape->payloads[i], *got = &recv->payloads[i];
        const char *at = (const char *)got->data + row * got->stride;
        char *expected = oracle_alloc(sent->bytes);
        oracle_fill_payload(shape, i, src, token, expected);
        differs = oracle_check_number(check, "bytes of payload", row, i, sent->bytes, got->bytes) ||
                  oracle_check_number(check, "stride of payload", row, i, align(sent->bytes, sent), got->stride) ||
                  oracle_check_number(check, "alignment of payload", row, i, 0,
                                      (uintptr_t)at % (sent->alignment != 0 ? sent->alignment : 1)) ||
                  oracle_differ_row(check->difference, "payload", row, XEP_U8, sent->bytes, expected, at);
        free(expected);
    }
    return differs;
}
