/* SPDX-License-Identifier: BSD-3-Clause */

/* The AVX-512 sums: what the walk of weigh_lines.h cannot say in C of a vector. */
#include "weigh_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define TARGET    __attribute__((target("avx512f")))
#define REGISTER  "x"
#define VECTOR_FN __attribute__((always_inline)) TARGET static inline

/* bytes */
enum { VECTOR = 64 };
typedef __m512 floats_t;
typedef __m512i bits_t;

VECTOR_FN bits_t load(const char *from)
{
    return _mm512_loadu_si512(from);
}

/* Streaming stores need an address on a vector, which walk() has seen to. */
VECTOR_FN void store(char *to, bits_t v, int streaming)
{
    if (streaming) _mm512_stream_si512((void *)to, v);
    else _mm512_storeu_si512(to, v);
}

VECTOR_FN floats_t multiply_add(floats_t w, floats_t x, floats_t sum)
{
    return _mm512_fmadd_ps(w, x, sum);
}

VECTOR_FN int has_nan(floats_t a, floats_t b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0;
}

/* Sums that are not numbers are replaced, all others stay. */
VECTOR_FN bits_t plain_nan(floats_t sum, bits_t bits, uint32_t nan)
{
    return _mm512_mask_mov_epi32(bits, _mm512_cmp_ps_mask(sum, sum, _CMP_UNORD_Q), _mm512_set1_epi32((int)nan));
}

VECTOR_FN floats_t lower_fp16(bits_t v)
{
    return _mm512_cvtph_ps(_mm512_castsi512_si256(v));
}

VECTOR_FN floats_t upper_fp16(bits_t v)
{
    return _mm512_cvtph_ps(_mm512_extracti64x4_epi64(v, 1));
}

/*
 * fp16 NaN would keep a payload. They are replaced in 32-bit lanes: masks of 16-bit lanes are AVX-512BW, and this
 * file is for processors that may have AVX-512F alone.
 */
VECTOR_FN __m256i round_fp16(floats_t sum)
{
    __m256i half = _mm512_cvtps_ph(sum, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return _mm512_cvtepi32_epi16(plain_nan(sum, _mm512_cvtepu16_epi32(half), 0x7e00));
}

VECTOR_FN bits_t join_fp16(floats_t a, floats_t b)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(round_fp16(a)), round_fp16(b), 1);
}

/* Elements of half a vector, in their order. */
VECTOR_FN floats_t widen_bf16(const char *from)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)from)), 16));
}

#include "weigh_lines.h"

TARGET void xep_weigh_wide_avx512(float *out, const void *const *rows, size_t n, size_t elems)
{
    weigh_wide(out, rows, n, elems);
}

const xep_weigh_fn xep_weigh_avx512[XEP_WEIGH_TYPES][2] = {{bf16, bf16_stream},
                                                           {fp16, fp16_stream},
                                                           {fp32, fp32_stream}};

#endif
