/* SPDX-License-Identifier: BSD-3-Clause */

/* What a coded row is made of; its blocks are in logfmt_lanes.h. */
#include "logfmt.h"

#include <math.h>
#include <string.h>

#include "floats.h"
#include "logfmt_lanes.h"

enum { GROUP = 128, SPAN = 32, STEPS = 510 };

/* Every group has a head entry, the last one too, however short it is. */
static size_t groups_of(size_t channels)
{
    return channels / GROUP + (channels % GROUP != 0);
}

/* As the format has it: what divides a row evenly decides how long its chunks are. */
static size_t chunk_of(size_t channels)
{
    return channels % 1024 == 0 ? 1024 : 512;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* The head, and every chunk as it was: coding never makes a row longer than that. */
size_t xep_logfmt_room(size_t channels)
{
    return groups_of(channels) * 4 + channels * 2;
}

static double log2_of(uint16_t magnitude)
{
    return log2((double)xep_float_of_bf16(magnitude));
}

/* 1, Inf and NaN cannot be coded, too, nor a group whose magnitudes are all the same: it has no step. */
static int is_group_coded(const uint16_t *head)
{
    const uint16_t largest = head[0], smallest = head[1];
    return largest < 0x3f80 && smallest < largest;
}

/* From the largest and the least magnitude of a group that can be coded. */
static void make_scale(const uint16_t *head, scale_t *scale)
{
    const double high = log2_of(head[0]), least_of_span = high - SPAN;
    scale->low = head[1] == 0 ? least_of_span : fmax(log2_of(head[1]), least_of_span);
    scale->step = (high - scale->low) / STEPS;
    scale->inverse = 1 / scale->step;
    scale->offset = 2 - log2((1 + exp2(scale->step)) / 2) * scale->inverse - scale->low * scale->inverse;
}

/* Whole blocks: the last one is filled up. */
static size_t coded_bytes(size_t channels)
{
    return (channels + BLOCK - 1) / BLOCK * BLOCK_BYTES;
}

/* head: of the chunk's first group. Both sides ask this of the same head, so that no flag is sent. */
static int is_coded(const uint16_t *head, size_t channels)
{
    if (coded_bytes(channels) >= channels * 2) return 0;
    for (size_t g = 0; g < groups_of(channels); g++)
        if (!is_group_coded(head + 2 * g)) return 0;
    return 1;
}

static size_t chunk_bytes(const uint16_t *head, size_t channels)
{
    return is_coded(head, channels) ? coded_bytes(channels) : channels * 2;
}

/* A receiver learns the length from the head alone, before it has seen the rest. */
size_t xep_logfmt_bytes(const void *from, size_t channels)
{
    const uint16_t *head = from;
    size_t bytes = groups_of(channels) * 4, chunk = chunk_of(channels);
    for (size_t i = 0; i < channels; i += chunk) bytes += chunk_bytes(head + i / GROUP * 2, least(chunk, channels - i));
    return bytes;
}

/* ---- to codes ---- */

/* The last block is filled up with zeros. */
KERNEL void encode_chunk(uint8_t *to, const uint16_t *row, const uint16_t *head, size_t channels)
{
    scale_t scale = {0};
    uint16_t last[BLOCK] = {0};
    for (size_t i = 0; i < channels; i += BLOCK, to += BLOCK_BYTES) {
        if (i % GROUP == 0) make_scale(head + i / GROUP * 2, &scale);
        if (channels - i < BLOCK) memcpy(last, row + i, (channels - i) * 2);
        encode_block(to, channels - i < BLOCK ? last : row + i, &scale);
    }
}

/* Chunk by chunk, each coded or copied, whichever is_coded() says of its groups. */
KERNEL size_t encode(void *to, const uint16_t *row, size_t channels)
{
    uint16_t *head = to;
    size_t chunk = chunk_of(channels), at = groups_of(channels) * 4;
    for (size_t g = 0; g < groups_of(channels); g++)
        find_span(head + 2 * g, row + g * GROUP, least(GROUP, channels - g * GROUP));
    for (size_t i = 0; i < channels; i += chunk) {
        size_t n = least(chunk, channels - i);
        const uint16_t *groups = head + i / GROUP * 2;
        if (is_coded(groups, n)) encode_chunk((uint8_t *)to + at, row + i, groups, n);
        else memcpy((char *)to + at, row + i, n * 2);
        at += chunk_bytes(groups, n);
    }
    return at;
}

/* ---- and back ---- */

KERNEL void decode_chunk(uint16_t *row, const uint8_t *from, const uint16_t *head, size_t channels)
{
    scale_t scale = {0};
    uint16_t last[BLOCK];
    for (size_t i = 0; i < channels; i += BLOCK, from += BLOCK_BYTES) {
        if (i % GROUP == 0) make_scale(head + i / GROUP * 2, &scale);
        decode_block(channels - i < BLOCK ? last : row + i, from, &scale);
        if (channels - i < BLOCK) memcpy(row + i, last, (channels - i) * 2);
    }
}

/*
 * The head was written by a peer: whatever it says, a chunk takes no more bytes than it would uncoded, and nothing is
 * read beyond the room that a row has.
 */
KERNEL void decode(uint16_t *row, const void *from, size_t channels)
{
    const uint16_t *head = from;
    size_t chunk = chunk_of(channels), at = groups_of(channels) * 4;
    for (size_t i = 0; i < channels; i += chunk) {
        size_t n = least(chunk, channels - i);
        const uint16_t *groups = head + i / GROUP * 2;
        if (is_coded(groups, n)) decode_chunk(row + i, (const uint8_t *)from + at, groups, n);
        else memcpy(row + i, (const char *)from + at, n * 2);
        at += chunk_bytes(groups, n);
    }
}

/* ---- by the registers that there are ---- */

static size_t encode_any(void *to, const uint16_t *row, size_t channels)
{
    return encode(to, row, channels);
}

static void decode_any(uint16_t *row, const void *from, size_t channels)
{
    decode(row, from, channels);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static size_t encode_avx2(void *to, const uint16_t *row, size_t channels)
{
    return encode(to, row, channels);
}

__attribute__((target("avx2"))) static void decode_avx2(uint16_t *row, const void *from, size_t channels)
{
    decode(row, from, channels);
}
#endif

xep_logfmt_t xep_logfmt_select(xep_simd_t simd)
{
#if defined(__x86_64__)
    if (simd >= XEP_SIMD_AVX2) return (xep_logfmt_t){encode_avx2, decode_avx2};
#else
    (void)simd;
#endif
    return (xep_logfmt_t){encode_any, decode_any};
}
