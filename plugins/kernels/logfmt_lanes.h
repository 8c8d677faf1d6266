/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Blocks of LogFMT, four channels at a time, in vectors that the compiler makes of the registers it may use. Included
 * by logfmt.c. What a kernel makes is the same with all registers, as long as products are rounded before they are
 * added to: so there is none for AVX-512, which would do both at once.
 */
#ifndef XEP_LOGFMT_LANES_H
#define XEP_LOGFMT_LANES_H

#include <stdint.h>
#include <string.h>

enum { BLOCK = 16, LANES = 4, BLOCK_BYTES = 20, CODE_BITS = 9, MOST_CODE = (1 << CODE_BITS) - 1 };

#define KERNEL __attribute__((always_inline)) static inline

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

typedef double doubles_t __attribute__((vector_size(LANES * 8)));
typedef uint64_t longs_t __attribute__((vector_size(LANES * 8)));
typedef float floats_t __attribute__((vector_size(LANES * 4)));
typedef uint32_t words_t __attribute__((vector_size(LANES * 4)));
typedef int32_t ints_t __attribute__((vector_size(LANES * 4)));
typedef uint16_t halves_t __attribute__((vector_size(LANES * 2)));
typedef uint16_t block_t __attribute__((vector_size(BLOCK * 2)));
typedef int16_t signed_block_t __attribute__((vector_size(BLOCK * 2)));

/** The scale of a group. */
typedef struct scale {
    double low, step;
    double inverse, offset; /* code = log2|x| * inverse + offset */
} scale_t;

/* log2(1 + i / 128): of all fractions that a bf16 has */
static const double fractions[128] = {
    0,
    0x1.6fe50b6ef0851p-7,
    0x1.6e79685c2d22ap-6,
    0x1.11cd1d5133413p-5,
    0x1.6bad3758efd87p-5,
    0x1.c4dfab90aab5fp-5,
    0x1.0eb389fa29f9bp-4,
    0x1.3aa2fdd27f1c3p-4,
    0x1.663f6fac91316p-4,
    0x1.918a16e46335bp-4,
    0x1.bc84240adabbap-4,
    0x1.e72ec117fa5b2p-4,
    0x1.08c588cda79e4p-3,
    0x1.1dcd197552b7bp-3,
    0x1.32ae9e278ae1ap-3,
    0x1.476a9f983f74dp-3,
    0x1.5c01a39fbd688p-3,
    0x1.70742d4ef027fp-3,
    0x1.84c2bd02f03b3p-3,
    0x1.98edd077e70dfp-3,
    0x1.acf5e2db4ec94p-3,
    0x1.c0db6cdd94deep-3,
    0x1.d49ee4c325970p-3,
    0x1.e840be74e6a4dp-3,
    0x1.fbc16b902680ap-3,
    0x1.0790adbb03009p-2,
    0x1.11307dad30b76p-2,
    0x1.1ac05b291f070p-2,
    0x1.24407ab0e073ap-2,
    0x1.2db10fc4d9aafp-2,
    0x1.37124cea4cdedp-2,
    0x1.406463b1b0449p-2,
    0x1.49a784bcd1b8bp-2,
    0x1.52dbdfc4c96b3p-2,
    0x1.5c01a39fbd688p-2,
    0x1.6518fe4677ba7p-2,
    0x1.6e221cd9d0cdep-2,
    0x1.771d2ba7efb3cp-2,
    0x1.800a563161c54p-2,
    0x1.88e9c72e0b226p-2,
    0x1.91bba891f1709p-2,
    0x1.9a802391e232fp-2,
    0x1.a33760a7f6051p-2,
    0x1.abe18797f1f49p-2,
    0x1.b47ebf73882a1p-2,
    0x1.bd0f2e9e79031p-2,
    0x1.c592fad295b56p-2,
    0x1.ce0a4923a587dp-2,
    0x1.d6753e032ea0fp-2,
    0x1.ded3fd442364cp-2,
    0x1.e726aa1e754d2p-2,
    0x1.ef6d67328e220p-2,
    0x1.f7a8568cb06cfp-2,
    0x1.ffd799a83ff9bp-2,
    0x1.03fda8b97997fp-1,
    0x1.0809cf27f703dp-1,
    0x1.0c10500d63aa6p-1,
    0x1.10113b153c8eap-1,
    0x1.140c9faa1e544p-1,
    0x1.18028cf72976ap-1,
    0x1.1bf311e95d00ep-1,
    0x1.1fde3d30e8126p-1,
    0x1.23c41d42727c8p-1,
    0x1.27a4c0585cbf8p-1,
    0x1.2b803473f7ad1p-1,
    0x1.2f56875eb3f26p-1,
    0x1.3327c6ab49ca7p-1,
    0x1.36f3ffb6d9162p-1,
    0x1.3abb3faa02167p-1,
    0x1.3e7d9379f7016p-1,
    0x1.423b07e986aa9p-1,
    0x1.45f3a98a20739p-1,
    0x1.49a784bcd1b8bp-1,
    0x1.4d56a5b33cec4p-1,
    0x1.510118708a8f9p-1,
    0x1.54a6e8ca5438ep-1,
    0x1.5848226989d34p-1,
    0x1.5be4d0cb51435p-1,
    0x1.5f7cff41e09afp-1,
    0x1.6310b8f553048p-1,
    0x1.66a008e4788ccp-1,
    0x1.6a2af9e5a0f0ap-1,
    0x1.6db196a76194ap-1,
    0x1.7133e9b156c7cp-1,
    0x1.74b1fd64e0754p-1,
    0x1.782bdbfdda657p-1,
    0x1.7ba18f93502e4p-1,
    0x1.7f1322182cf16p-1,
    0x1.82809d5be7073p-1,
    0x1.85ea0b0b27b26p-1,
    0x1.894f74b06ef8bp-1,
    0x1.8cb0e3b4b3bbep-1,
    0x1.900e6160002cdp-1,
    0x1.9367f6da0ab2fp-1,
    0x1.96bdad2acb5f6p-1,
    0x1.9a0f8d3b0e050p-1,
    0x1.9d5d9fd5010b3p-1,
    0x1.a0a7eda4c112dp-1,
    0x1.a3ee7f38e181fp-1,
    0x1.a7315d02f20c8p-1,
    0x1.aa708f58014d3p-1,
    0x1.adac1e711c833p-1,
    0x1.b0e4126bcc86cp-1,
    0x1.b418734a9008cp-1,
    0x1.b74948f5532dap-1,
    0x1.ba769b39e4964p-1,
    0x1.bda071cc67e6ep-1,
    0x1.c0c6d447c5dd3p-1,
    0x1.c3e9ca2e1a055p-1,
    0x1.c7095ae91e1c7p-1,
    0x1.ca258dca93316p-1,
    0x1.cd3e6a0ca8907p-1,
    0x1.d053f6d260896p-1,
    0x1.d3663b27f31d5p-1,
    0x1.d6753e032ea0fp-1,
    0x1.d9810643d6615p-1,
    0x1.dc899ab3ff56cp-1,
    0x1.df8f02086af2cp-1,
    0x1.e29142e0e0140p-1,
    0x1.e59063c8822cep-1,
    0x1.e88c6b3626a73p-1,
    0x1.eb855f8ca88fbp-1,
    0x1.ee7b471b3a950p-1,
    0x1.f16e281db7630p-1,
    0x1.f45e08bcf0655p-1,
    0x1.f74aef0efafaep-1,
    0x1.fa34e1177c233p-1,
    0x1.fd1be4c7f2af9p-1,
};

#define ONE_LONG    0x4330000000000000u /* the bits of 2^52, whose last bit counts ones */
#define ONE_LONG_AT 0x1p52

/* ---- to codes ---- */

/* The largest and the least magnitude of a group. Without their signs bf16 compare as their bits do. */
KERNEL void find_span(uint16_t *head, const uint16_t *row, size_t channels)
{
    block_t values, magnitudes, is_more, most = {0}, least_one = most + 0x7fff;
    size_t i = 0;
    for (; i + BLOCK <= channels; i += BLOCK) {
        memcpy(&values, row + i, sizeof values);
        magnitudes = values & 0x7fff;
        is_more = (block_t)((signed_block_t)magnitudes > (signed_block_t)most);
        most = (magnitudes & is_more) | (most & ~is_more);
        is_more = (block_t)((signed_block_t)magnitudes > (signed_block_t)least_one);
        least_one = (least_one & is_more) | (magnitudes & ~is_more);
    }
    head[0] = most[0], head[1] = least_one[0];
    UNROLL for (int lane = 1; lane < BLOCK; lane++)
    {
        head[0] = most[lane] > head[0] ? most[lane] : head[0];
        head[1] = least_one[lane] < head[1] ? least_one[lane] : head[1];
    }
    for (; i < channels; i++) {
        const uint16_t magnitude = row[i] & 0x7fff;
        head[0] = magnitude > head[0] ? magnitude : head[0];
        head[1] = magnitude < head[1] ? magnitude : head[1];
    }
}

/*
 * The codes of four channels, 36 bits. A bf16 that is subnormal is none as a double; 0 has the least exponent, and with
 * it a code below 1.
 */
KERNEL uint64_t encode_lanes(const uint16_t *row, const scale_t *scale)
{
    halves_t values;
    double fraction[LANES];
    uint64_t parts[LANES];
    doubles_t log;
    memcpy(&values, row, sizeof values);
    const floats_t magnitudes = (floats_t)(__builtin_convertvector(values & 0x7fff, words_t) << 16);
    const longs_t number = (longs_t) __builtin_convertvector(magnitudes, doubles_t), at = number >> 45 & 127;
    UNROLL for (int i = 0; i < LANES; i++) fraction[i] = fractions[at[i]];
    memcpy(&log, fraction, sizeof log);
    log += (doubles_t)(number >> 52 | ONE_LONG) - (ONE_LONG_AT + 1023);
    ints_t codes = __builtin_convertvector(log * scale->inverse + scale->offset, ints_t);
    codes &= ~(codes >> 31);
    const longs_t shifted = __builtin_convertvector((words_t)codes, longs_t) << (longs_t){0, 9, 18, 27};
    memcpy(parts, &shifted, sizeof parts);
    return parts[0] | parts[1] | parts[2] | parts[3];
}

/* Codes fill bytes from the lowest bit on; the sixteen signs go into the two that are left. */
KERNEL void encode_block(uint8_t *to, const uint16_t *row, const scale_t *scale)
{
    uint64_t codes[BLOCK / LANES], signs[BLOCK / LANES];
    UNROLL for (int i = 0; i < BLOCK / LANES; i++)
    {
        codes[i] = encode_lanes(row + i * LANES, scale);
        memcpy(&signs[i], row + i * LANES, sizeof signs[i]);
        /* bits 15, 31, 47 and 63 become 0, 1, 2, 3: what is multiplied puts each of them to 60 and above */
        signs[i] = (signs[i] >> 15 & 0x0001000100010001u) * 0x1000200040008000u >> 60;
    }
    codes[0] |= codes[1] << 36, codes[1] >>= 28;
    codes[1] |= codes[2] << 8 | codes[3] << 44;
    codes[2] = codes[3] >> 20 | (signs[0] | signs[1] << 4 | signs[2] << 8 | signs[3] << 12) << 16;
    memcpy(to, codes, BLOCK_BYTES);
}

/* ---- and back ---- */

/* 2^y of y from -1000 to 0: the next integer is the exponent, and what is left at most 1/2. Off by 6e-15 at most. */
KERNEL void find_powers(doubles_t *y)
{
    static const double terms[] = {0x1.0000000000000p+0,  0x1.62e42fefa39efp-1,  0x1.ebfbdff82c58fp-3,
                                   0x1.c6b08d704a0c0p-5,  0x1.3b2ab6fba4e77p-7,  0x1.5d87fe78a6731p-10,
                                   0x1.430912f86c787p-13, 0x1.ffcbfc588b0c7p-17, 0x1.62c0223a5c824p-20,
                                   0x1.b5253d395e7c4p-24, 0x1.e4cf5158b8ecap-28, 0x1.e8cac7351bb25p-32};
    const doubles_t rounded = *y + 0x1.8p52, rest = *y - (rounded - 0x1.8p52);
    const doubles_t square = rest * rest;
    doubles_t even = square * terms[10] + terms[8], odd = square * terms[11] + terms[9];
    UNROLL for (int i = 6; i >= 0; i -= 2) even = even * square + terms[i], odd = odd * square + terms[i + 1];
    const doubles_t power = odd * rest + even;
    *y = (doubles_t)((longs_t)power + ((longs_t)rounded << 52));
}

/* From the lowest bits of codes and signs on. Code 0 is zero, with its sign: what was too small for the scale. */
KERNEL void decode_lanes(uint16_t *row, uint64_t codes, uint64_t signs, const scale_t *scale)
{
    const longs_t lanes = ((longs_t){0} + codes) >> (longs_t){0, 9, 18, 27} & MOST_CODE;
    doubles_t power = ((doubles_t)(lanes | ONE_LONG) - (ONE_LONG_AT + 1)) * scale->step + scale->low;
    find_powers(&power);
    const longs_t sign = (((longs_t){0} + signs) << (longs_t){63, 62, 61, 60}) & 1ull << 63;
    power = (doubles_t)(((longs_t)power & (longs_t)(lanes != 0)) | sign);
    const words_t single = (words_t) __builtin_convertvector(power, floats_t);
    const halves_t values = __builtin_convertvector((single + 0x7fff + (single >> 16 & 1)) >> 16, halves_t);
    memcpy(row, &values, sizeof values);
}

KERNEL void decode_block(uint16_t *row, const uint8_t *from, const scale_t *scale)
{
    uint64_t words[3] = {0};
    memcpy(words, from, BLOCK_BYTES);
    const uint64_t signs = words[2] >> 16;
    decode_lanes(row, words[0], signs, scale);
    decode_lanes(row + LANES, words[0] >> 36 | words[1] << 28, signs >> LANES, scale);
    decode_lanes(row + 2 * LANES, words[1] >> 8, signs >> 2 * LANES, scale);
    decode_lanes(row + 3 * LANES, words[1] >> 44 | words[2] << 20, signs >> 3 * LANES, scale);
}

#endif
