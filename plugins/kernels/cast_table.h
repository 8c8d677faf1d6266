/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * e4m3 codes of bf16, looked up. A bf16 has 7 bits of fraction, and so has the amax of its group: which of eight places
 * a number comes to follows from these two alone, and each power of two that it is smaller takes 8 from its code. That
 * holds for codes from 8 on; what is smaller than 2^-6 once scaled has fewer places, and is left to arithmetic.
 */
#ifndef XEP_CAST_TABLE_H
#define XEP_CAST_TABLE_H

#include "cast_kernels.h"

enum { XEP_CAST_FRACTIONS = 128, XEP_CAST_POW2 = XEP_CAST_FRACTIONS, XEP_CAST_ROWS, XEP_CAST_LEAST_PLACE = 8 };

/**
 * Codes of numbers with the exponent of amax. Places lie more than 8 fractions apart, so that two codes at most are
 * among fractions 8 h .. 8 h + 7: from 8 h on it is first + (steps[h] >> 4), and one more behind 8 h + (steps[h] & 7).
 * A fraction above that of amax has the code of the number half as large, plus 8.
 */
typedef struct xep_cast_codes {
    uint8_t first; /* of fraction 0 */
    uint8_t steps[16];
} xep_cast_codes_t;

/** By the fraction of amax; XEP_CAST_POW2: where the scale is a power of two, whatever amax. */
extern const xep_cast_codes_t xep_cast_codes[XEP_CAST_ROWS];

/**
 * The codes of a group, and in *top_p the exponent of numbers from whose codes nothing is taken. NULL: they cannot be
 * looked up, as amax is no bf16 (it is the least that counts). Arguments are the bits of floats.
 */
static inline const xep_cast_codes_t *xep_cast_codes_of(uint32_t amax, uint32_t scale, int pow2, uint8_t *top_p)
{
    *top_p = (uint8_t)(pow2 ? (scale >> 23) + 8 : amax >> 23);
    if (pow2) return &xep_cast_codes[XEP_CAST_POW2];
    return (amax & 0xffff) == 0 ? &xep_cast_codes[amax >> 16 & (XEP_CAST_FRACTIONS - 1)] : NULL;
}

#endif
