/* SPDX-License-Identifier: BSD-3-Clause */

/* The AVX-512 cast of bf16 with VBMI (Ice Lake, Zen 4): one permutation looks 64 codes up. */
#include "cast_table.h"

#if defined(__x86_64__)

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,prfchw")))
#define BF16_ALONE

#include "cast_avx512.h"
#include "cast_vectors.h"

X86 void codes_of_group(int type, uint8_t *q, const char *x, float factor)
{
    codes_of(&e4m3_rule, type, q, x, XEP_CAST_GROUP, factor);
}

/* Bytes 0, 2, 4, ... of two registers, or, from 1, the others. */
X86 __m512i every_other_byte(__m512i a, __m512i b, char from)
{
    const __m512i counting =
        _mm512_set_epi8(63, 62, 61, 60, 59, 58, 57, 56, 55, 54, 53, 52, 51, 50, 49, 48, 47, 46, 45, 44, 43, 42, 41, 40,
                        39, 38, 37, 36, 35, 34, 33, 32, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16,
                        15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    __m512i at = _mm512_add_epi8(_mm512_add_epi8(counting, counting), _mm512_set1_epi8(from));
    return _mm512_permutex2var_epi8(a, at, b);
}

/*
 * 64 bf16. The low byte of a number has the last bit of its exponent above its fraction, the high one the sign above
 * the rest of the exponent. Returns which codes the table does not know: those of numbers too small, but not of zero.
 */
X86 __mmask64 look_up_64(uint8_t *q, const char *x, __m512i codes_0, __m512i codes_64, __m512i top)
{
    __m512i a = _mm512_loadu_si512(x), b = _mm512_loadu_si512(x + VECTOR);
    __m512i low = every_other_byte(a, b, 0), high = every_other_byte(a, b, 1);
    __m512i exponents = _mm512_add_epi8(high, high);
    exponents = _mm512_mask_add_epi8(exponents, _mm512_movepi8_mask(low), exponents, _mm512_set1_epi8(1));
    __m512i below = _mm512_min_epu8(_mm512_sub_epi8(top, exponents), _mm512_set1_epi8(16));
    __m512i codes = _mm512_permutex2var_epi8(codes_0, low, codes_64); /* by the 7 bits of the fraction */
    codes = _mm512_subs_epu8(codes, _mm512_slli_epi16(below, 3));
    __mmask64 is_rare = _mm512_cmplt_epu8_mask(codes, _mm512_set1_epi8(XEP_CAST_LEAST_PLACE)) &
                        _mm512_test_epi8_mask(_mm512_or_si512(low, exponents), _mm512_set1_epi8(-1));
    __mmask64 is_negative = _mm512_movepi8_mask(high);
    _mm512_storeu_si512(q, _mm512_mask_add_epi8(codes, is_negative, codes, _mm512_set1_epi8((char)0x80)));
    return is_rare;
}

/* The codes of fractions from 8 h on, 64 of them, one by one. */
X86 __m512i codes_from(const xep_cast_codes_t *codes, int h)
{
    const __m512i eighths = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0), within = _mm512_set1_epi64(0x0706050403020100);
    __m512i at = _mm512_add_epi64(eighths, _mm512_set1_epi64(h));
    at = _mm512_shuffle_epi8(at, _mm512_set4_epi32(0x08080808, 0x08080808, 0, 0)); /* each to its 8 bytes */
    __m512i steps = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)codes->steps));
    steps = _mm512_shuffle_epi8(steps, at);
    __m512i last = _mm512_and_si512(steps, _mm512_set1_epi8(15));
    __m512i first = _mm512_and_si512(_mm512_srli_epi16(steps, 4), _mm512_set1_epi8(15));
    first = _mm512_add_epi8(first, _mm512_set1_epi8((char)codes->first));
    return _mm512_mask_add_epi8(first, _mm512_cmpgt_epu8_mask(within, last), first, _mm512_set1_epi8(1));
}

/* Two registers have the codes of all 128 fractions. What was stored before a 0 is written again by arithmetic. */
X86 int codes_by_table(uint8_t *q, const char *x, uint32_t amax, uint32_t scale, int pow2)
{
    uint8_t top;
    const xep_cast_codes_t *codes = xep_cast_codes_of(amax, scale, pow2, &top);
    if (codes == NULL) return 0;
    __m512i codes_0 = codes_from(codes, 0), codes_64 = codes_from(codes, 8), tops = _mm512_set1_epi8((char)top);
    return (look_up_64(q, x, codes_0, codes_64, tops) | look_up_64(q + 64, x + 128, codes_0, codes_64, tops)) == 0;
}

#include "cast_blocks.h"

const xep_cast_fn xep_cast_vbmi = cast_bf16;

#endif
