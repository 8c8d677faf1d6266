/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Plain loops and tables: rows travel this way only to ranks that are not mapped, where the network is slower than
 * this.
 */
#include "logfmt.h"

#include <math.h>
#include <string.h>

#include "floats.h"

enum { GROUP = 128, BLOCK = 16, BLOCK_BYTES = 20, CODE_BITS = 9, SPAN = 32, STEPS = 510 };

/** The scale of a group. */
typedef struct scale {
    double low, step;
    double inverse, offset; /* code = log2|x| * inverse + offset */
} scale_t;

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

/* From a group's largest and least magnitude; 0: it cannot be coded. */
static int make_scale(uint16_t largest, uint16_t smallest, scale_t *scale)
{
    double high = log2_of(largest);
    if (largest == 0 || largest >= 0x3f80) return 0; /* 1, Inf and NaN, too */
    scale->low = smallest == 0 ? high - SPAN : fmax(log2_of(smallest), high - SPAN);
    scale->step = (high - scale->low) / STEPS;
    scale->inverse = 1 / scale->step;
    scale->offset = 2 - log2((1 + exp2(scale->step)) / 2) * scale->inverse - scale->low * scale->inverse;
    /* where both are the same the step is 0 and the rest of the scale useless: such a group is not coded */
    return scale->low < high;
}

/* Whole blocks: the last one is filled up. */
static size_t coded_bytes(size_t channels)
{
    return (channels + BLOCK - 1) / BLOCK * BLOCK_BYTES;
}

/* head: of the chunk's first group */
/* Both sides ask this of the same head, so that no flag is sent. */
static int is_coded(const uint16_t *head, size_t channels)
{
    scale_t scale;
    if (coded_bytes(channels) >= channels * 2) return 0;
    for (size_t g = 0; g < groups_of(channels); g++)
        if (!make_scale(head[2 * g], head[2 * g + 1], &scale)) return 0;
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

/* Without their signs bf16 compare as their bits do. A NaN is the largest then, and its chunk is not coded. */
static void fill_head(uint16_t *head, const uint16_t *row, size_t channels)
{
    for (size_t i = 0; i < channels; i += GROUP, head += 2) {
        uint16_t most = 0, least_one = 0x7fff;
        for (size_t j = i; j < i + GROUP && j < channels; j++) {
            uint16_t magnitude = row[j] & 0x7fff;
            if (magnitude > most) most = magnitude;
            if (magnitude < least_one) least_one = magnitude;
        }
        head[0] = most;
        head[1] = least_one;
    }
}

/* log2 of 1 to 2 in steps of a bf16's fraction; with the exponent that is the logarithm of a magnitude. */
static void make_fractions(double *fractions)
{
    for (int i = 0; i < 128; i++) fractions[i] = log2(1 + i / 128.0);
}

static uint32_t code_of(uint16_t magnitude, const scale_t *scale, const double *fractions)
{
    if (magnitude == 0) return 0;
    int exponent = magnitude >> 7;
    double log = exponent == 0 ? log2_of(magnitude) : exponent - 127 + fractions[magnitude & 127];
    double code = log * scale->inverse + scale->offset;
    return code < 1 ? 0 : (uint32_t)code;
}

/* Codes fill words from the lowest bit on; the sixteen signs go into the half word that is left. */
static void encode_block(uint32_t *to, const uint16_t *row, size_t channels, const scale_t *scale,
                         const double *fractions)
{
    uint64_t bits = 0;
    uint32_t signs = 0;
    int used = 0;
    for (size_t i = 0; i < BLOCK; i++) {
        uint16_t value = i < channels ? row[i] : 0;
        bits |= (uint64_t)code_of(value & 0x7fff, scale, fractions) << used;
        signs |= (uint32_t)(value >> 15) << i;
        used += CODE_BITS;
        if (used < 32) continue;
        *to++ = (uint32_t)bits;
        bits >>= 32;
        used -= 32;
    }
    *to = (uint32_t)bits | signs << 16; /* 144 bits of codes: half a word is left */
}

/* Only where is_coded() has said so: every group of the chunk has a scale, and make_scale() does not fail. */
static void encode_chunk(uint32_t *to, const uint16_t *row, const uint16_t *head, size_t channels,
                         const double *fractions)
{
    scale_t scale = {0};
    for (size_t i = 0; i < channels; i += BLOCK, to += BLOCK_BYTES / 4) {
        if (i % GROUP == 0) make_scale(head[i / GROUP * 2], head[i / GROUP * 2 + 1], &scale);
        encode_block(to, row + i, least(BLOCK, channels - i), &scale, fractions);
    }
}

/* Chunk by chunk, each coded or copied, whichever is_coded() says of its groups. */
size_t xep_logfmt_encode(void *to, const uint16_t *row, size_t channels)
{
    uint16_t *head = to;
    size_t chunk = chunk_of(channels), at = groups_of(channels) * 4;
    double fractions[128];
    make_fractions(fractions);
    fill_head(head, row, channels);
    for (size_t i = 0; i < channels; i += chunk) {
        size_t n = least(chunk, channels - i);
        const uint16_t *groups = head + i / GROUP * 2;
        if (is_coded(groups, n)) encode_chunk((uint32_t *)(void *)((char *)to + at), row + i, groups, n, fractions);
        else memcpy((char *)to + at, row + i, n * 2);
        at += chunk_bytes(groups, n);
    }
    return at;
}

/* ---- and back ---- */

/* Code 0 is zero, with its sign: everything too small for the scale became that. */
static uint16_t value_of(uint32_t code, uint32_t sign, const scale_t *scale)
{
    if (code == 0) return (uint16_t)(sign << 15);
    return (uint16_t)(sign << 15 | xep_bf16_of_float((float)exp2((code - 1) * scale->step + scale->low)));
}

/* Codes take 144 bits, four words and a half: one that lies across two words never begins in the last. */
static void decode_block(uint16_t *row, const uint32_t *from, size_t channels, const scale_t *scale)
{
    uint32_t signs = from[4] >> 16;
    for (size_t i = 0; i < channels; i++) {
        size_t bit = i * CODE_BITS, word = bit / 32, shift = bit % 32;
        uint32_t code = from[word] >> shift;
        if (shift + CODE_BITS > 32) code |= from[word + 1] << (32 - shift);
        row[i] = value_of(code & ((1u << CODE_BITS) - 1), signs >> i & 1, scale);
    }
}

static void decode_chunk(uint16_t *row, const uint32_t *from, const uint16_t *head, size_t channels)
{
    scale_t scale = {0};
    for (size_t i = 0; i < channels; i += BLOCK, from += BLOCK_BYTES / 4) {
        if (i % GROUP == 0) make_scale(head[i / GROUP * 2], head[i / GROUP * 2 + 1], &scale);
        decode_block(row + i, from, least(BLOCK, channels - i), &scale);
    }
}

/*
 * The head was written by a peer: whatever it says, a chunk takes no more bytes than it would uncoded, and nothing is
 * read beyond the room that a row has.
 */
void xep_logfmt_decode(uint16_t *row, const void *from, size_t channels)
{
    const uint16_t *head = from;
    size_t chunk = chunk_of(channels), at = groups_of(channels) * 4;
    for (size_t i = 0; i < channels; i += chunk) {
        size_t n = least(chunk, channels - i);
        const uint16_t *groups = head + i / GROUP * 2;
        if (is_coded(groups, n))
            decode_chunk(row + i, (const uint32_t *)(const void *)((const char *)from + at), groups, n);
        else memcpy(row + i, (const char *)from + at, n * 2);
        at += chunk_bytes(groups, n);
    }
}
