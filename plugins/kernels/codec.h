/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * How rows travel in a combine that asks for fewer bits: encoded by a cast (cast.h) or as LogFMT (logfmt.h), decoded to
 * bf16. The row comes first, then, at the next word, its scales.
 */
#ifndef XEP_CODEC_H
#define XEP_CODEC_H

#include "cast.h"

/**
 * Decodes elems channels of a row by the rule of quant: bf16(q * scale), of NVFP4 bf16(q * (b * s)). given: the scale
 * of XEP_QUANT_E4M3_STATIC. Any q and scales are safe.
 */
typedef void (*xep_decode_fn)(xep_quant_t quant, uint16_t *row, const void *q, const void *scales, size_t elems,
                              float given);

/** The scalar function is the definition, the other one has the same bits for every input. Not for LogFMT. */
xep_decode_fn xep_decode_select(xep_simd_t simd);

typedef struct xep_codec {
    xep_quant_t quant;
    size_t channels;
    float scale;      /* the caller's quant_scale */
    xep_dtype_t from; /* what is encoded */
    /* but for LogFMT: */
    xep_cast_t cast;
    size_t scales, bytes; /* where they begin, and the row ends */
    xep_decode_fn decode;
} xep_codec_t;

/** quant is not XEP_QUANT_NONE. wide: rows that are encoded are fp32, and not bf16; LogFMT is made of bf16 always. */
xep_codec_t xep_codec_select(xep_quant_t quant, float scale, size_t channels, int wide, xep_simd_t simd);

/** Encodes a row; returns its bytes. to: 4-byte aligned. */
size_t xep_codec_encode(const xep_codec_t *codec, void *to, const void *row);

/** Bytes of an encoded row. */
size_t xep_codec_bytes(const xep_codec_t *codec, const void *from);

/** Any contents are safe, as long as the most bytes of such a row can be read. */
void xep_codec_decode(const xep_codec_t *codec, uint16_t *row, const void *from);

#endif
