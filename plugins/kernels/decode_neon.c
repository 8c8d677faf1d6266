/* SPDX-License-Identifier: BSD-3-Clause */

/* Decoding by the vectors of NEON. */
#include "cast_formats.h"

#if defined(__aarch64__)

#include <arm_neon.h>

enum { LANES = 4 };

#define TARGET
#define NEON __attribute__((always_inline)) static inline

typedef uint32_t words_t __attribute__((vector_size(LANES * 4)));

NEON words_t load_codes(const xep_cast_element_t *element, const uint8_t *q)
{
    uint32_t bytes;
    uint16_t nibbles;
    if (element->bits == 8) {
        memcpy(&bytes, q, sizeof bytes);
        return (words_t)vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(bytes))));
    }
    memcpy(&nibbles, q, sizeof nibbles);
    return ((words_t){0} + nibbles) >> (words_t){0, 4, 8, 12} & 15;
}

NEON void store_halves(uint16_t *to, words_t low, words_t high)
{
    vst1q_u16(to, vuzp1q_u16((uint16x8_t)low, (uint16x8_t)high));
}

#include "decode_vectors.h"

void xep_decode_neon(xep_quant_t quant, uint16_t *row, const void *q, const void *scales, size_t elems, float given)
{
    decode_row(xep_cast_rule(quant), row, q, scales, elems, given);
}

#endif
