/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * All casts with AVX2: what cast_vectors.h cannot say in C of a vector, and e4m3 of bf16 by the table, a byte of which
 * is looked up for each of 32 numbers at once.
 */
#include "cast_table.h"

#if defined(__x86_64__)

enum { VECTOR = 32 };

#define TARGET   __attribute__((target("avx2,f16c,prfchw")))
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

/* ---- e4m3 with a scale for each 128 channels ---- */

X86 __m256i load256(const char *x)
{
    return _mm256_loadu_si256((const void *)x);
}

/*
 * e4m3 of 8 magnitudes up to 448, plus 1128, times scale. Adding 2^20 times the power of two in v, but not less than
 * that of 2^-6, rounds v to a place of its code: the lower half of the sum counts places, the upper has an exponent
 * of eight places in units of 1/16 of a place.
 */
X86 __m256i codes256(__m256 v, int scale)
{
    __m256i power = _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7f800000));
    power = _mm256_max_epi32(power, _mm256_set1_epi32(121 << 23));
    __m256i large = _mm256_add_epi32(power, _mm256_set1_epi32(20 << 23));
    __m256i sum = _mm256_castps_si256(_mm256_add_ps(v, _mm256_castsi256_ps(large)));
    return _mm256_madd_epi16(sum, _mm256_set1_epi32(scale / 16 << 16 | scale));
}

/* Codes were made of magnitudes; the sign is bit 7 of a code, as it is the top bit of every number. */
X86 __m256i with_signs(__m256i codes, __m256i negative)
{
    return _mm256_or_si256(codes, _mm256_and_si256(negative, _mm256_set1_epi8((char)0x80)));
}

/* 16 bf16: even elements are the lower halves of 32-bit lanes, odd ones the upper; their codes meet in 16 bits of
 * each */
X86 __m256i codes_of_16_bf16(__m256i v, __m256 factor)
{
    __m256i magnitude = _mm256_and_si256(v, _mm256_set1_epi16(0x7fff));
    __m256i odd = _mm256_and_si256(magnitude, _mm256_set1_epi32((int)0xffff0000u)),
            even = _mm256_slli_epi32(magnitude, 16);
    even = codes256(_mm256_mul_ps(_mm256_castsi256_ps(even), factor), 16);
    odd = codes256(_mm256_mul_ps(_mm256_castsi256_ps(odd), factor), 16 * 256);
    __m256i both = _mm256_sub_epi32(_mm256_add_epi32(even, odd), _mm256_set1_epi32(16 * 257 * 1128));
    return _mm256_srli_epi32(both, 4);
}

/* Packing works within 128-bit lanes, of codes and of numbers alike; saturated, a number keeps its sign. */
X86 void cast_32_bf16(uint8_t *q, const char *x, __m256 factor)
{
    __m256i a = load256(x), b = load256(x + VECTOR);
    __m256i codes = _mm256_packus_epi32(codes_of_16_bf16(a, factor), codes_of_16_bf16(b, factor));
    codes = with_signs(codes, _mm256_packs_epi16(a, b));
    _mm256_storeu_si256((void *)q, _mm256_permute4x64_epi64(codes, 0xd8));
}

/* Eight elements as floats, whatever they are in memory. */
X86 __m256i load_floats(int type, const char *x)
{
    if (type == XEP_CAST_FP32) return load256(x);
    return _mm256_castps_si256(_mm256_cvtph_ps(_mm_loadu_si128((const void *)x)));
}

/* 1128 is what codes256() has added to each code; 16 is the scale that its multiplication needs at least. */
X86 __m256i codes_of_floats(__m256i v, __m256 factor)
{
    __m256 magnitude = _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32(0x7fffffff)));
    return _mm256_srli_epi32(_mm256_sub_epi32(codes256(_mm256_mul_ps(magnitude, factor), 16),
                                              _mm256_set1_epi32(16 * 1128)),
                             4);
}

/* Four vectors of 8 make 32 codes. Packing works within 128-bit lanes: the permutation puts them in order. */
X86 void cast_32(int type, uint8_t *q, const char *x, __m256 factor)
{
    const size_t step = 8 * xep_cast_type_bytes(type);
    __m256i a = load_floats(type, x), b = load_floats(type, x + step);
    __m256i c = load_floats(type, x + 2 * step), d = load_floats(type, x + 3 * step);
    __m256i negative = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    a = codes_of_floats(a, factor), b = codes_of_floats(b, factor);
    c = codes_of_floats(c, factor), d = codes_of_floats(d, factor);
    __m256i codes = with_signs(_mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d)), negative);
    codes = _mm256_permutevar8x32_epi32(codes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((void *)q, codes);
}

/*
 * 32 bf16 by the table. A byte of low has a number's fraction, one of exponents its exponent; rare gets the bytes whose
 * codes the table does not know. Zero needs no care: its exponent is so far from any top that its code comes to 0.
 */
X86 void look_up_32(uint8_t *q, const char *x, __m256i first, __m256i last, __m256i top, __m256i *rare)
{
    __m256i a = load256(x), b = load256(x + VECTOR);
    const __m256i fraction = _mm256_set1_epi16(0x7f), least = _mm256_set1_epi8(XEP_CAST_LEAST_PLACE);
    __m256i low = _mm256_packus_epi16(_mm256_and_si256(a, fraction), _mm256_and_si256(b, fraction));
    __m256i exponents = _mm256_packus_epi16(_mm256_srli_epi16(_mm256_slli_epi16(a, 1), 8),
                                            _mm256_srli_epi16(_mm256_slli_epi16(b, 1), 8));
    __m256i h = _mm256_and_si256(_mm256_srli_epi16(low, 3), _mm256_set1_epi8(15));
    __m256i is_next =
        _mm256_cmpgt_epi8(_mm256_and_si256(low, _mm256_set1_epi8(7)), _mm256_shuffle_epi8(last, h)); /* -1 */
    __m256i codes = _mm256_sub_epi8(_mm256_shuffle_epi8(first, h), is_next);
    __m256i below = _mm256_min_epu8(_mm256_sub_epi8(top, exponents), _mm256_set1_epi8(16));
    codes = _mm256_subs_epu8(codes, _mm256_slli_epi16(below, 3));
    __m256i is_zero = _mm256_cmpeq_epi8(_mm256_or_si256(low, exponents), _mm256_setzero_si256());
    *rare = _mm256_or_si256(*rare, _mm256_andnot_si256(is_zero, _mm256_cmpgt_epi8(least, codes)));
    codes = with_signs(codes, _mm256_packs_epi16(a, b));
    _mm256_storeu_si256((void *)q, _mm256_permute4x64_epi64(codes, 0xd8));
}

/*
 * The 16 steps are in both lanes, since bytes are looked up within a lane of 128 bits. 0: some number is not in the
 * table; the codes stored so far do no harm, as codes_of_group() writes all of them again.
 */
X86 int codes_by_table(uint8_t *q, const char *x, uint32_t amax, uint32_t scale, int pow2)
{
    uint8_t top;
    const xep_cast_codes_t *codes = xep_cast_codes_of(amax, scale, pow2, &top);
    if (codes == NULL) return 0;
    const __m256i low = _mm256_set1_epi8(15);
    __m256i steps = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)codes->steps));
    __m256i first = _mm256_and_si256(_mm256_srli_epi16(steps, 4), low), last = _mm256_and_si256(steps, low);
    first = _mm256_add_epi8(first, _mm256_set1_epi8((char)codes->first));
    __m256i tops = _mm256_set1_epi8((char)top), rare = _mm256_setzero_si256();
    UNROLL for (size_t i = 0; i < XEP_CAST_GROUP; i += 32) look_up_32(q + i, x + i * 2, first, last, tops, &rare);
    return _mm256_testz_si256(rare, rare);
}

/* 32 codes, which is half a line, at a time. */
X86 void codes_of_group(int type, uint8_t *q, const char *x, float scale)
{
    const __m256 factor = _mm256_set1_ps(scale);
    UNROLL for (size_t i = 0; i < XEP_CAST_GROUP; i += 32)
    {
        if (type == XEP_CAST_BF16) cast_32_bf16(q + i, x + i * 2, factor);
        else cast_32(type, q + i, x + i * xep_cast_type_bytes(type), factor);
    }
}

#include "cast_blocks.h"

const xep_cast_fn xep_cast_avx2[XEP_CAST_TYPES] = {cast_bf16, cast_fp16, cast_fp32};

#endif
