/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * How rows travel in a combine that asks for fewer bits: encoded by a cast (cast.h) or as LogFMT (logfmt.h), decoded to
 * bf16. The row comes first, then, at the next word, its scales.
 */
#ifndef XEP_CODEC_H
#define XEP_CODEC_H

#include "cast.h"
#include "cast_formats.h"
#include "logfmt.h"

/**
 * Decodes elems channels of a row by the rule of quant: bf16(q * scale), of NVFP4 bf16(q * (b * s)). given: the scale
 * of XEP_QUANT_E4M3_STATIC. Any q and scales are safe.
 */
typedef void (*xep_decode_fn)(xep_quant_t quant, uint16_t *row, const void *q, const void *scales, size_t elems,
                              float given);

/** The scalar function is the definition, the other one has the same bits for every input. Not for LogFMT. */
xep_decode_fn xep_decode_select(xep_simd_t simd);

/* ---- decode.c ---- */

/** Channels of a group, the first of which begins with a byte of q, by the definition. */
void xep_decode_group(const xep_cast_element_t *element, uint16_t *row, const uint8_t *q, size_t elems, float scale);

/** Rows, as xep_decode_fn has it. */
void xep_decode_scalar(xep_quant_t quant, uint16_t *row, const void *q, const void *scales, size_t elems, float given);
#if defined(__x86_64__)
void xep_decode_avx2(xep_quant_t quant, uint16_t *row, const void *q, const void *scales, size_t elems, float given);
#elif defined(__aarch64__)
void xep_decode_neon(xep_quant_t quant, uint16_t *row, const void *q, const void *scales, size_t elems, float given);
#endif

/* ---- codec.c ---- */

typedef struct xep_codec {
    xep_quant_t quant;
    size_t channels;
    size_t stride;    /* between rows that lie side by side: no row is longer */
    float scale;      /* the caller's quant_scale */
    xep_dtype_t from; /* what is encoded */
    xep_logfmt_t logfmt;
    /* but for LogFMT: */
    xep_cast_t cast;
    size_t scales, bytes; /* where they begin, and the row ends */
    xep_decode_fn decode;
} xep_codec_t;

/**
 * Most bytes of an encoded row of so many channels, of whatever codec: LogFMT begins with what it knows of each group,
 * and may have nothing to shorten then; the scales of a cast make a row of a few channels longer.
 */
static inline uint64_t xep_codec_room(uint64_t channels)
{
    uint64_t room = xep_logfmt_room(channels);
    xep_cast_format_t format;
    for (unsigned quant = 0; quant < XEP_CAST_TABLE; quant++) {
        if (!xep_cast_format(quant, channels, &format)) continue;
        const uint64_t bytes = (format.row_bytes + 3) / 4 * 4 + format.scale_words * 4;
        if (bytes > room) room = bytes;
    }
    return room;
}

/** quant is not XEP_QUANT_NONE. wide: rows that are encoded are fp32, and not bf16; LogFMT is made of bf16 always. */
xep_codec_t xep_codec_select(xep_quant_t quant, float scale, size_t channels, int wide, xep_simd_t simd);

/** Encodes a row; returns its bytes. to: 4-byte aligned. */
size_t xep_codec_encode(const xep_codec_t *codec, void *to, const void *row);

/** Bytes of an encoded row. */
size_t xep_codec_bytes(const xep_codec_t *codec, const void *from);

/** Any contents are safe, as long as the most bytes of such a row can be read. */
void xep_codec_decode(const xep_codec_t *codec, uint16_t *row, const void *from);

#endif
