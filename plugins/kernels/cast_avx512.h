/* SPDX-License-Identifier: BSD-3-Clause */

/** AVX-512: what cast_vectors.h cannot say in C of a vector. Included by a file that has said TARGET. */
#ifndef XEP_CAST_AVX512_H
#define XEP_CAST_AVX512_H

enum { VECTOR = 64 };

#define REGISTER "v"

#include "cast_x86.h"

X86 words_t max32(words_t a, words_t b)
{
    return (words_t)_mm512_max_epi32((__m512i)a, (__m512i)b);
}

X86 words_t min32(words_t a, words_t b)
{
    return (words_t)_mm512_min_epi32((__m512i)a, (__m512i)b);
}

X86 uint32_t largest_word(words_t v)
{
    return (uint32_t)_mm512_reduce_max_epi32((__m512i)v);
}

X86 int is_any_below(singles_t v, uint16_t least)
{
    return _mm512_cmplt_epu16_mask((__m512i)v, _mm512_set1_epi16((short)least)) != 0;
}

X86 words_t load_fp16(const char *x)
{
    return (words_t)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)x));
}

X86 unit_t pack(const words_t codes[1])
{
    return (unit_t)_mm512_cvtepi32_epi8((__m512i)codes[0]);
}

#endif
