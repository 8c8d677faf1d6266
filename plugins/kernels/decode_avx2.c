/* SPDX-License-Identifier: BSD-3-Clause */

/* Decoding by vectors, those of AVX2 with AVX-512, too: it is as fast as rows come from the memory. */
#include "cast_formats.h"

#if defined(__x86_64__)

#include <immintrin.h>

enum { LANES = 8 };

#define TARGET __attribute__((target("avx2")))
#define AVX2   __attribute__((always_inline)) TARGET static inline

typedef uint32_t words_t __attribute__((vector_size(LANES * 4)));

AVX2 words_t load_codes(const xep_cast_element_t *element, const uint8_t *q)
{
    uint32_t nibbles;
    if (element->bits == 8) return (words_t)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)q));
    memcpy(&nibbles, q, sizeof nibbles);
    return ((words_t){0} + nibbles) >> (words_t){0, 4, 8, 12, 16, 20, 24, 28} & 15;
}

/* Packing works within lanes of 128 bits: the permutation puts them in order. */
AVX2 void store_halves(uint16_t *to, words_t low, words_t high)
{
    const __m256i halves = _mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)low, (__m256i)high), 0xd8);
    _mm256_storeu_si256((void *)to, halves);
}

#include "decode_vectors.h"

TARGET void xep_decode_avx2(xep_quant_t quant, uint16_t *row, const void *q, const void *scales, size_t elems,
                            float given)
{
    decode_row(xep_cast_rule(quant), row, q, scales, elems, given);
}

#endif
