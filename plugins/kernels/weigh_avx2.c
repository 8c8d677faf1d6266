/* SPDX-License-Identifier: BSD-3-Clause */

/* The AVX2 sums: what the walk of weigh_lines.h cannot say in C of a vector, which is half a line. */
#include "weigh_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define TARGET    __attribute__((target("avx2,fma,f16c")))
#define REGISTER  "x"
#define VECTOR_FN __attribute__((always_inline)) TARGET static inline

/* bytes */
enum { VECTOR = 32 };
typedef __m256 floats_t;
typedef __m256i bits_t;

VECTOR_FN bits_t load(const char *from)
{
    return _mm256_loadu_si256((const void *)from);
}

/* Streaming stores need an address on a vector, which walk() has seen to. */
VECTOR_FN void store(char *to, bits_t v, int streaming)
{
    if (streaming) _mm256_stream_si256((void *)to, v);
    else _mm256_storeu_si256((void *)to, v);
}

VECTOR_FN floats_t multiply_add(floats_t w, floats_t x, floats_t sum)
{
    return _mm256_fmadd_ps(w, x, sum);
}

VECTOR_FN bits_t nans(floats_t sum)
{
    return _mm256_castps_si256(_mm256_cmp_ps(sum, sum, _CMP_UNORD_Q));
}

VECTOR_FN int has_nan(floats_t a, floats_t b)
{
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)) != 0;
}

/* Sums that are not numbers are replaced, all others stay. */
VECTOR_FN bits_t plain_nan(floats_t sum, bits_t bits, uint32_t nan)
{
    return _mm256_blendv_epi8(bits, _mm256_set1_epi32((int)nan), nans(sum));
}

VECTOR_FN floats_t lower_fp16(bits_t v)
{
    return _mm256_cvtph_ps(_mm256_castsi256_si128(v));
}

VECTOR_FN floats_t upper_fp16(bits_t v)
{
    return _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1));
}

/* The mask of 32-bit lanes becomes one of 16 bits by packing: -1 stays -1. */
VECTOR_FN __m128i round_fp16(floats_t sum)
{
    __m128i half = _mm256_cvtps_ph(sum, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    bits_t mask = nans(sum);
    __m128i narrow = _mm_packs_epi32(_mm256_castsi256_si128(mask), _mm256_extracti128_si256(mask, 1));
    return _mm_blendv_epi8(half, _mm_set1_epi16(0x7e00), narrow);
}

/* Halves of a vector are rounded one by one, as they were loaded. */
VECTOR_FN bits_t join_fp16(floats_t a, floats_t b)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(round_fp16(a)), round_fp16(b), 1);
}

/* Elements of half a vector, in their order. */
VECTOR_FN floats_t widen_bf16(const char *from)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)from)), 16));
}

#include "weigh_lines.h"

TARGET void xep_weigh_wide_avx2(float *out, const void *const *rows, size_t n, size_t elems)
{
    weigh_wide(out, rows, n, elems);
}

const xep_weigh_fn xep_weigh_avx2[XEP_WEIGH_TYPES][2] = {{bf16, bf16_stream}, {fp16, fp16_stream}, {fp32, fp32_stream}};

#endif
