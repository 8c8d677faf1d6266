/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The AVX2 and AVX-512 kernels. Each type says how a vector of a row is added and how the sums end; what
 * walks over rows and vectors is written once for each width.
 */
#include "reduce_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <stdint.h>

enum { LINE = 64, FEW = 4 };

#define AVX512 __attribute__((always_inline, target("avx512f"))) static inline
#define AVX2 __attribute__((always_inline, target("avx2,f16c"))) static inline

static int is_line_aligned(const void *p)
{
    return ((uintptr_t)p & (LINE - 1)) == 0;
}

/* ---- AVX-512: a vector is a line ---- */

/** Sums of one line: of its even and odd elements, of its lower and upper half, or in a alone. */
typedef struct sums512 {
    __m512 a, b;
} sums512_t;

typedef void (*add512_fn)(sums512_t *sums, const void *row, size_t at);
typedef __m512i (*end512_fn)(sums512_t sums);

/*
 * Written out for eight rows, so that each row has a load instruction of its own: the prefetcher knows streams by
 * it. In a loop with one load, sums of three or four rows of 14 KiB out of the cache took 2.5 times as long.
 */
AVX512 sums512_t rows_add512(const void *const *rows, size_t n, size_t at, add512_fn add)
{
    sums512_t sums = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (; n >= 8; n -= 8, rows += 8) {
        add(&sums, rows[0], at);
        add(&sums, rows[1], at);
        add(&sums, rows[2], at);
        add(&sums, rows[3], at);
        add(&sums, rows[4], at);
        add(&sums, rows[5], at);
        add(&sums, rows[6], at);
        add(&sums, rows[7], at);
    }
    if (n > 0) add(&sums, rows[0], at);
    if (n > 1) add(&sums, rows[1], at);
    if (n > 2) add(&sums, rows[2], at);
    if (n > 3) add(&sums, rows[3], at);
    if (n > 4) add(&sums, rows[4], at);
    if (n > 5) add(&sums, rows[5], at);
    if (n > 6) add(&sums, rows[6], at);
    return sums;
}

/* Whole lines of out; returns the bytes done. */
AVX512 size_t lines_of512(void *out, const void *const *rows, size_t n, size_t bytes, int streaming, add512_fn add,
                          end512_fn end)
{
    char *to = out;
    size_t at = 0;
    if (streaming && is_line_aligned(out))
        for (; at + LINE <= bytes; at += LINE)
            _mm512_stream_si512((void *)(to + at), end(rows_add512(rows, n, at, add)));
    else
        for (; at + LINE <= bytes; at += LINE) _mm512_storeu_si512(to + at, end(rows_add512(rows, n, at, add)));
    return at;
}

/* A loop for each small n: questions about n, and pointers read anew, in every line cost as much as two rows. */
AVX512 size_t lines512(void *out, const void *const *rows, size_t n, size_t bytes, int streaming, add512_fn add,
                       end512_fn end)
{
    const void *few[FEW];
    for (size_t i = 0; i < n && i < FEW; i++) few[i] = rows[i];
    switch (n) {
    case 1: return lines_of512(out, few, 1, bytes, streaming, add, end);
    case 2: return lines_of512(out, few, 2, bytes, streaming, add, end);
    case 3: return lines_of512(out, few, 3, bytes, streaming, add, end);
    case 4: return lines_of512(out, few, 4, bytes, streaming, add, end);
    default: return lines_of512(out, rows, n, bytes, streaming, add, end);
    }
}

AVX512 __m512i load512(const void *row, size_t at)
{
    return _mm512_loadu_si512((const char *)row + at);
}

AVX512 __m512i plain_nan512(__m512 sum, __m512i bits, uint32_t nan)
{
    return _mm512_mask_mov_epi32(bits, _mm512_cmp_ps_mask(sum, sum, _CMP_UNORD_Q), _mm512_set1_epi32((int)nan));
}

/* Even and odd elements are the lower and upper halves of the 32-bit lanes. */
AVX512 void bf16_add512(sums512_t *sums, const void *row, size_t at)
{
    __m512i line = load512(row, at), upper = _mm512_set1_epi32((int)0xffff0000u);
    sums->a = _mm512_add_ps(sums->a, _mm512_castsi512_ps(_mm512_slli_epi32(line, 16)));
    sums->b = _mm512_add_ps(sums->b, _mm512_castsi512_ps(_mm512_and_si512(line, upper)));
}

/* The upper half of the result is the bf16. Not for NaN. */
AVX512 __m512i bf16_round512(__m512 sum)
{
    __m512i bits = _mm512_castps_si512(sum);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
}

/* NaN by a branch that is never taken: masking every line cost a third where rows are in the cache. */
AVX512 __m512i bf16_end512(sums512_t sums)
{
    __m512i even = bf16_round512(sums.a), odd = bf16_round512(sums.b), upper = _mm512_set1_epi32((int)0xffff0000u);
    if (__builtin_expect(_mm512_cmp_ps_mask(sums.a, sums.b, _CMP_UNORD_Q) != 0, 0)) {
        even = plain_nan512(sums.a, even, 0x7fc00000);
        odd = plain_nan512(sums.b, odd, 0x7fc00000);
    }
    return _mm512_or_si512(_mm512_srli_epi32(even, 16), _mm512_and_si512(odd, upper));
}

AVX512 void fp16_add512(sums512_t *sums, const void *row, size_t at)
{
    __m512i line = load512(row, at);
    sums->a = _mm512_add_ps(sums->a, _mm512_cvtph_ps(_mm512_castsi512_si256(line)));
    sums->b = _mm512_add_ps(sums->b, _mm512_cvtph_ps(_mm512_extracti64x4_epi64(line, 1)));
}

AVX512 __m256i fp16_round512(__m512 sum)
{
    __m256i half = _mm512_cvtps_ph(sum, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return _mm512_cvtepi32_epi16(plain_nan512(sum, _mm512_cvtepu16_epi32(half), 0x7e00));
}

AVX512 __m512i fp16_end512(sums512_t sums)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(fp16_round512(sums.a)), fp16_round512(sums.b), 1);
}

AVX512 void fp32_add512(sums512_t *sums, const void *row, size_t at)
{
    sums->a = _mm512_add_ps(sums->a, _mm512_castsi512_ps(load512(row, at)));
}

AVX512 __m512i fp32_end512(sums512_t sums)
{
    return plain_nan512(sums.a, _mm512_castps_si512(sums.a), 0x7fc00000);
}

__attribute__((target("avx512f"))) static void bf16_512(void *out, const void *const *rows, size_t n, size_t elems)
{
    size_t done = lines512(out, rows, n, elems * 2, 0, bf16_add512, bf16_end512);
    xep_reduce_bf16_from(out, rows, n, done / 2, elems);
}

__attribute__((target("avx512f"))) static void bf16_512s(void *out, const void *const *rows, size_t n, size_t elems)
{
    size_t done = lines512(out, rows, n, elems * 2, 1, bf16_add512, bf16_end512);
    xep_reduce_bf16_from(out, rows, n, done / 2, elems);
}

__attribute__((target("avx512f"))) static void fp16_512(void *out, const void *const *rows, size_t n, size_t elems)
{
    size_t done = lines512(out, rows, n, elems * 2, 0, fp16_add512, fp16_end512);
    xep_reduce_fp16_from(out, rows, n, done / 2, elems);
}

__attribute__((target("avx512f"))) static void fp16_512s(void *out, const void *const *rows, size_t n, size_t elems)
{
    size_t done = lines512(out, rows, n, elems * 2, 1, fp16_add512, fp16_end512);
    xep_reduce_fp16_from(out, rows, n, done / 2, elems);
}

__attribute__((target("avx512f"))) static void fp32_512(void *out, const void *const *rows, size_t n, size_t elems)
{
    size_t done = lines512(out, rows, n, elems * 4, 0, fp32_add512, fp32_end512);
    xep_reduce_fp32_from(out, rows, n, done / 4, elems);
}

__attribute__((target("avx512f"))) static void fp32_512s(void *out, const void *const *rows, size_t n, size_t elems)
{
    size_t done = lines512(out, rows, n, elems * 4, 1, fp32_add512, fp32_end512);
    xep_reduce_fp32_from(out, rows, n, done / 4, elems);
}

const xep_reduce_fn xep_reduce_avx512[XEP_REDUCE_TYPES][2] = {
    [XEP_REDUCE_BF16] = {bf16_512, bf16_512s},
    [XEP_REDUCE_FP16] = {fp16_512, fp16_512s},
    [XEP_REDUCE_FP32] = {fp32_512, fp32_512s},
};

/* ---- AVX2: two vectors make a line, which is streamed whole ---- */

typedef struct sums256 {
    __m256 a, b;
} sums256_t;

typedef void (*add256_fn)(sums256_t *sums, const void *row, size_t at);
typedef __m256i (*end256_fn)(sums256_t sums);

AVX2 sums256_t rows_add256(const void *const *rows, size_t n, size_t at, add256_fn add)
{
    sums256_t sums = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (; n >= 8; n -= 8, rows += 8) {
        add(&sums, rows[0], at);
        add(&sums, rows[1], at);
        add(&sums, rows[2], at);
        add(&sums, rows[3], at);
        add(&sums, rows[4], at);
        add(&sums, rows[5], at);
        add(&sums, rows[6], at);
        add(&sums, rows[7], at);
    }
    if (n > 0) add(&sums, rows[0], at);
    if (n > 1) add(&sums, rows[1], at);
    if (n > 2) add(&sums, rows[2], at);
    if (n > 3) add(&sums, rows[3], at);
    if (n > 4) add(&sums, rows[4], at);
    if (n > 5) add(&sums, rows[5], at);
    if (n > 6) add(&sums, rows[6], at);
    return sums;
}

AVX2 size_t lines_of256(void *out, const void *const *rows, size_t n, size_t bytes, int streaming, add256_fn add,
                        end256_fn end)
{
    char *to = out;
    size_t at = 0;
    if (streaming && is_line_aligned(out))
        for (; at + 32 <= bytes; at += 32)
            _mm256_stream_si256((void *)(to + at), end(rows_add256(rows, n, at, add)));
    else
        for (; at + 32 <= bytes; at += 32)
            _mm256_storeu_si256((void *)(to + at), end(rows_add256(rows, n, at, add)));
    return at;
}

AVX2 size_t lines256(void *out, const void *const *rows, size_t n, size_t bytes, int streaming, add256_fn add,
                     end256_fn end)
{
    const void *few[FEW];
    for (size_t i = 0; i < n && i < FEW; i++) few[i] = rows[i];
    switch (n) {
    case 1: return lines_of256(out, few, 1, bytes, streaming, add, end);
    case 2: return lines_of256(out, few, 2, bytes, streaming, add, end);
    case 3: return lines_of256(out, few, 3, bytes, streaming, add, end);
    case 4: return lines_of256(out, few, 4, bytes, streaming, add, end);
    default: return lines_of256(out, rows, n, bytes, streaming, add, end);
    }
}

AVX2 __m256i load256(const void *row, size_t at)
{
    return _mm256_loadu_si256((const void *)((const char *)row + at));
}

AVX2 __m256i plain_nan256(__m256 sum, __m256i bits, uint32_t nan)
{
    __m256i mask = _mm256_castps_si256(_mm256_cmp_ps(sum, sum, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(bits, _mm256_set1_epi32((int)nan), mask);
}

AVX2 void bf16_add256(sums256_t *sums, const void *row, size_t at)
{
    __m256i v = load256(row, at), upper = _mm256_set1_epi32((int)0xffff0000u);
    sums->a = _mm256_add_ps(sums->a, _mm256_castsi256_ps(_mm256_slli_epi32(v, 16)));
    sums->b = _mm256_add_ps(sums->b, _mm256_castsi256_ps(_mm256_and_si256(v, upper)));
}

AVX2 __m256i bf16_round256(__m256 sum)
{
    __m256i bits = _mm256_castps_si256(sum);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
}

AVX2 __m256i bf16_end256(sums256_t sums)
{
    __m256i even = bf16_round256(sums.a), odd = bf16_round256(sums.b), upper = _mm256_set1_epi32((int)0xffff0000u);
    if (__builtin_expect(_mm256_movemask_ps(_mm256_cmp_ps(sums.a, sums.b, _CMP_UNORD_Q)) != 0, 0)) {
        even = plain_nan256(sums.a, even, 0x7fc00000);
        odd = plain_nan256(sums.b, odd, 0x7fc00000);
    }
    return _mm256_or_si256(_mm256_srli_epi32(even, 16), _mm256_and_si256(odd, upper));
}

AVX2 void fp16_add256(sums256_t *sums, const void *row, size_t at)
{
    __m256i v = load256(row, at);
    sums->a = _mm256_add_ps(sums->a, _mm256_cvtph_ps(_mm256_castsi256_si128(v)));
    sums->b = _mm256_add_ps(sums->b, _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1)));
}

AVX2 __m128i fp16_round256(__m256 sum)
{
    __m128i half = _mm256_cvtps_ph(sum, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256i mask = _mm256_castps_si256(_mm256_cmp_ps(sum, sum, _CMP_UNORD_Q));
    __m128i mask16 = _mm_packs_epi32(_mm256_castsi256_si128(mask), _mm256_extracti128_si256(mask, 1));
    return _mm_blendv_epi8(half, _mm_set1_epi16(0x7e00), mask16);
}

AVX2 __m256i fp16_end256(sums256_t sums)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(fp16_round256(sums.a)), fp16_round256(sums.b), 1);
}

AVX2 void fp32_add256(sums256_t *sums, const void *row, size_t at)
{
    sums->a = _mm256_add_ps(sums->a, _mm256_castsi256_ps(load256(row, at)));
}

AVX2 __m256i fp32_end256(sums256_t sums)
{
    return plain_nan256(sums.a, _mm256_castps_si256(sums.a), 0x7fc00000);
}

__attribute__((target("avx2,f16c"))) static void bf16_256(void *out, const void *const *rows, size_t n, size_t elems)
{
    size_t done = lines256(out, rows, n, elems * 2, 0, bf16_add256, bf16_end256);
    xep_reduce_bf16_from(out, rows, n, done / 2, elems);
}

__attribute__((target("avx2,f16c"))) static void bf16_256s(void *out, const void *const *rows, size_t n, size_t elems)
{
    size_t done = lines256(out, rows, n, elems * 2, 1, bf16_add256, bf16_end256);
    xep_reduce_bf16_from(out, rows, n, done / 2, elems);
}

__attribute__((target("avx2,f16c"))) static void fp16_256(void *out, const void *const *rows, size_t n, size_t elems)
{
    size_t done = lines256(out, rows, n, elems * 2, 0, fp16_add256, fp16_end256);
    xep_reduce_fp16_from(out, rows, n, done / 2, elems);
}

__attribute__((target("avx2,f16c"))) static void fp16_256s(void *out, const void *const *rows, size_t n, size_t elems)
{
    size_t done = lines256(out, rows, n, elems * 2, 1, fp16_add256, fp16_end256);
    xep_reduce_fp16_from(out, rows, n, done / 2, elems);
}

__attribute__((target("avx2,f16c"))) static void fp32_256(void *out, const void *const *rows, size_t n, size_t elems)
{
    size_t done = lines256(out, rows, n, elems * 4, 0, fp32_add256, fp32_end256);
    xep_reduce_fp32_from(out, rows, n, done / 4, elems);
}

__attribute__((target("avx2,f16c"))) static void fp32_256s(void *out, const void *const *rows, size_t n, size_t elems)
{
    size_t done = lines256(out, rows, n, elems * 4, 1, fp32_add256, fp32_end256);
    xep_reduce_fp32_from(out, rows, n, done / 4, elems);
}

const xep_reduce_fn xep_reduce_avx2[XEP_REDUCE_TYPES][2] = {
    [XEP_REDUCE_BF16] = {bf16_256, bf16_256s},
    [XEP_REDUCE_FP16] = {fp16_256, fp16_256s},
    [XEP_REDUCE_FP32] = {fp32_256, fp32_256s},
};

#endif
