/* SPDX-License-Identifier: BSD-3-Clause */

/* The AVX2 sums: what a vector, half a line, is for the walk of weigh_lines.h. */
#include "weigh_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define TARGET    __attribute__((target("avx2,fma,f16c")))
#define VECTOR_FN __attribute__((always_inline)) TARGET static inline

enum { VECTOR = 32 };
typedef __m256 floats_t;
typedef __m256i bits_t;

VECTOR_FN floats_t zeros(void)
{
    return _mm256_setzero_ps();
}

VECTOR_FN floats_t all_of(float value)
{
    return _mm256_set1_ps(value);
}

VECTOR_FN bits_t load(const char *from)
{
    return _mm256_loadu_si256((const void *)from);
}

VECTOR_FN void store(char *to, bits_t v, int streaming)
{
    if (streaming) _mm256_stream_si256((void *)to, v);
    else _mm256_storeu_si256((void *)to, v);
}

VECTOR_FN floats_t add(floats_t a, floats_t b)
{
    return _mm256_add_ps(a, b);
}

VECTOR_FN floats_t multiply_add(floats_t w, floats_t x, floats_t sum)
{
    return _mm256_fmadd_ps(w, x, sum);
}

VECTOR_FN floats_t as_floats(bits_t v)
{
    return _mm256_castsi256_ps(v);
}

VECTOR_FN bits_t nans(floats_t sum)
{
    return _mm256_castps_si256(_mm256_cmp_ps(sum, sum, _CMP_UNORD_Q));
}

VECTOR_FN bits_t plain_nan(floats_t sum, bits_t bits, uint32_t nan)
{
    return _mm256_blendv_epi8(bits, _mm256_set1_epi32((int)nan), nans(sum));
}

VECTOR_FN bits_t end_fp32(floats_t sum)
{
    return plain_nan(sum, _mm256_castps_si256(sum), 0x7fc00000);
}

VECTOR_FN floats_t even_bf16(bits_t v)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
}

VECTOR_FN floats_t odd_bf16(bits_t v)
{
    return _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32((int)0xffff0000u)));
}

VECTOR_FN bits_t round_bf16(floats_t sum)
{
    bits_t bits = _mm256_castps_si256(sum), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
}

VECTOR_FN bits_t join_bf16(floats_t a, floats_t b)
{
    bits_t even = round_bf16(a), odd = round_bf16(b), upper = _mm256_set1_epi32((int)0xffff0000u);
    if (__builtin_expect(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)) != 0, 0)) {
        even = plain_nan(a, even, 0x7fc00000);
        odd = plain_nan(b, odd, 0x7fc00000);
    }
    return _mm256_or_si256(_mm256_srli_epi32(even, 16), _mm256_and_si256(odd, upper));
}

VECTOR_FN floats_t lower_fp16(bits_t v)
{
    return _mm256_cvtph_ps(_mm256_castsi256_si128(v));
}

VECTOR_FN floats_t upper_fp16(bits_t v)
{
    return _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1));
}

VECTOR_FN __m128i round_fp16(floats_t sum)
{
    __m128i half = _mm256_cvtps_ph(sum, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    bits_t mask = nans(sum);
    __m128i narrow = _mm_packs_epi32(_mm256_castsi256_si128(mask), _mm256_extracti128_si256(mask, 1));
    return _mm_blendv_epi8(half, _mm_set1_epi16(0x7e00), narrow);
}

VECTOR_FN bits_t join_fp16(floats_t a, floats_t b)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(round_fp16(a)), round_fp16(b), 1);
}

#include "weigh_lines.h"

const xep_weigh_fn xep_weigh_avx2[XEP_WEIGH_TYPES][2] = {{bf16, bf16_stream}, {fp16, fp16_stream}, {fp32, fp32_stream}};

#endif
