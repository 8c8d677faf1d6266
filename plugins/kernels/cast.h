/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Casts of rows on the way, by the rules of xep_quant_t. The scalar functions are the definition, the others have the
 * same bits for every input, Inf and NaN included.
 */
#ifndef XEP_CAST_H
#define XEP_CAST_H

#include <stddef.h>
#include <stdint.h>

#include <xep/plugin.h>

#define XEP_CAST_BIT_(_name, _value, _text) | 1u << _value

/** The set of all casts, as a mode's table tells them. */
#define XEP_CASTS ((0 XEP_QUANT_LIST(XEP_CAST_BIT_)) & ~(1u << XEP_QUANT_NONE | 1u << XEP_QUANT_LOGFMT))

/** Of tables by xep_quant_t, some rows of which are empty: a cast is a bit of a word, too. */
#define XEP_CAST_TABLE 32

/** What a cast makes of a row. */
typedef struct xep_cast_format {
    xep_dtype_t dtype, scales_dtype;
    uint64_t row_bytes; /* and elements of dtype, which has one byte */
    uint64_t scale_words;
} xep_cast_format_t;

/** Fills the format of a row of hidden channels. Returns 0 for what is no cast of a dispatch. */
int xep_cast_format(unsigned quant, uint64_t hidden, xep_cast_format_t *format_p);

/** A cast of rows of one type by the kernels of one machine. */
typedef struct xep_cast xep_cast_t;
struct xep_cast {
    /*
     * Casts elems elements of x, of any alignment of their type, to q and scales (whole words). next is the row that
     * will be cast after this one, or x: it is fetched meanwhile.
     */
    void (*row)(const xep_cast_t *cast, void *q, void *scales, const void *x, size_t elems, const void *next);
    void (*kernel)(void); /* what row calls */
    size_t elem_bytes;
    float scale; /* the caller's; 0: none */
    int pow2;
};

/** Selects the cast of rows of XEP_BF16, XEP_FP16 or XEP_FP32; quant is not XEP_QUANT_NONE. scale as in xep_cast_t. */
xep_cast_t xep_cast_select(xep_quant_t quant, xep_dtype_t dtype, xep_simd_t simd, float scale);

#endif
