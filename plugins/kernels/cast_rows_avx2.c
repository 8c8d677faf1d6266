/* SPDX-License-Identifier: BSD-3-Clause */

/* The casts of cast_formats.h with AVX2. */
#include "cast_formats.h"

#if defined(__x86_64__)

enum { VECTOR = 32 };

#define TARGET   __attribute__((target("avx2,f16c")))
#define REGISTER "x"

#include "cast_x86.h"

X86 words_t max32(words_t a, words_t b)
{
    return (words_t)_mm256_max_epi32((__m256i)a, (__m256i)b);
}

X86 words_t min32(words_t a, words_t b)
{
    return (words_t)_mm256_min_epi32((__m256i)a, (__m256i)b);
}

X86 uint32_t largest_word(words_t v)
{
    __m128i a = _mm_max_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
    a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0x4e));
    a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(a);
}

X86 int is_any_below(singles_t v, uint16_t least)
{
    const __m256i most = _mm256_max_epu16((__m256i)v, _mm256_set1_epi16((short)least));
    return _mm256_movemask_epi8(_mm256_cmpeq_epi16(most, (__m256i)v)) != -1;
}

X86 words_t load_fp16(const char *x)
{
    return (words_t)_mm256_cvtph_ps(_mm_loadu_si128((const void *)x));
}

/* Packing works within lanes of 128 bits: the permutation puts them in order. */
X86 unit_t pack(const words_t codes[2])
{
    __m256i halves = _mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)codes[0], (__m256i)codes[1]), 0xd8);
    return (unit_t)_mm_packus_epi16(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
}

#include "cast_vectors.h"

const xep_cast_row_fn xep_cast_rows_avx2[XEP_CAST_TABLE][XEP_CAST_TYPES] = {XEP_CAST_BLOCKS(CAST_ENTRY_)};

#endif
