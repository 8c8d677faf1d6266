/* SPDX-License-Identifier: BSD-3-Clause */

/** Element types, and the casts of rows on the way. */
#ifndef XEP_DTYPE_H
#define XEP_DTYPE_H

#include <stddef.h>
#include <stdint.h>

#include <xep/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The element types: X(name, value, bytes of an element, text). Values never change. */
#define XEP_DTYPE_LIST(X)       \
    X(XEP_BF16, 1, 2, "bf16")   \
    X(XEP_FP16, 2, 2, "fp16")   \
    X(XEP_FP32, 3, 4, "fp32")   \
    X(XEP_E4M3, 4, 1, "e4m3")   \
    X(XEP_E5M2, 5, 1, "e5m2")   \
    X(XEP_U8, 6, 1, "u8")       \
    X(XEP_INT32, 7, 4, "int32") \
    X(XEP_INT64, 8, 8, "int64") \
    X(XEP_FP64, 9, 8, "fp64")   \
    X(XEP_INT8, 10, 1, "int8")  \
    X(XEP_E2M1X2, 11, 1, "e2m1x2")

#define XEP_DTYPE_ENUM_(_name, _value, _bytes, _text) _name = _value,

/**
 * XEP_DTYPE_DEFAULT (0) in a params or args struct means the default of that field. XEP_E4M3 and XEP_E5M2 are the 8-bit
 * floats of OCP; E4M3 is the one without infinities (e4m3fn). An element of XEP_E2M1X2 is two 4-bit floats of OCP, the
 * first in the lower half of the byte (torch.float4_e2m1fn_x2).
 */
typedef enum {
    /* clang-format off */
    XEP_DTYPE_LIST(XEP_DTYPE_ENUM_)
    XEP_DTYPE_DEFAULT = 0,
    XEP_ENUM_IS_INT(XEP_DTYPE)
    /* clang-format on */
} xep_dtype_t;

#undef XEP_DTYPE_ENUM_

/** Bytes of one element; 0 for a value that is not a type. */
XEP_API size_t xep_dtype_size(xep_dtype_t dtype);

/** "bf16" and so on; "unknown" for a value that is not a type. Static storage, never NULL. */
XEP_API const char *xep_dtype_name(xep_dtype_t dtype);

/** The casts: X(name, value, text). Values never change, and have no gaps. */
#define XEP_QUANT_LIST(X)                       \
    X(XEP_QUANT_NONE, 0, "none")                \
    X(XEP_QUANT_E4M3, 1, "e4m3")                \
    X(XEP_QUANT_E4M3_POW2, 2, "e4m3_pow2")      \
    X(XEP_QUANT_UE8M0, 3, "ue8m0")              \
    X(XEP_QUANT_MXFP8, 4, "mxfp8")              \
    X(XEP_QUANT_MXFP8_E5M2, 5, "mxfp8_e5m2")    \
    X(XEP_QUANT_MXFP4, 6, "mxfp4")              \
    X(XEP_QUANT_NVFP4, 7, "nvfp4")              \
    X(XEP_QUANT_INT8, 8, "int8")                \
    X(XEP_QUANT_INT8_ROW, 9, "int8_row")        \
    X(XEP_QUANT_E4M3_STATIC, 10, "e4m3_static") \
    X(XEP_QUANT_LOGFMT, 11, "logfmt")

#define XEP_QUANT_ENUM_(_name, _value, _text) _name = _value,

/**
 * Casts on the way (which of them a mode has: xep_mode_query()): what a channel x becomes, and the scale of its group,
 * so that x is near q * scale. Groups are channels side by side, from the first on; the last one may be shorter. fp32
 * arithmetic, rounded to nearest, ties to even, saturating; amax is the largest |x| of the group.
 *
 * Groups of 128, DeepEP's, with amax at least 1e-4. A NaN arrives as a NaN and does not count for amax. A group with an
 * Inf has the scale Inf (byte 255), and every channel of it is NaN, or becomes NaN when it is multiplied by the scale.
 *   E4M3         fp32 scale = amax * (1 / 448), q = e4m3(x * (448 / amax))
 *   E4M3_POW2    fp32 scale = 2^e, the least power of two not below amax / 448; q = e4m3(x * 2^-e)
 *   UE8M0        as E4M3_POW2, with the scales as bytes e + 127
 *
 * All others: a group with an Inf or a NaN has a scale that is NaN (E8M0: byte 255), and every q is 0.
 *   MXFP8        groups of 32; scale 2^e with the least e for which amax <= 448 * 2^e, at least -127, as a byte e + 127
 *                (E8M0): OCP's format (MX 1.0), with NVIDIA's scale, with which nothing saturates; q = e4m3(x * 2^-e)
 *   MXFP8_E5M2   the same with e5m2 and 57344
 *   MXFP4        the same with e2m1 and 6: two channels to a byte (XEP_E2M1X2)
 *   NVFP4        groups of 16, e2m1. The row has an fp32 scale s: quant_scale, with inverse = 1 / s, or amax of the
 *                row (at least 2^-100) / 2688, with inverse = 2688 / amax. A group has a byte b = e4m3(amax * (1 / 6) *
 *                inverse); q = e2m1(x * (inverse / b)), or 0 if b is 0: x is near q * b * s. Where s is not given, that
 *                of a row with an Inf or a NaN is NaN
 *   INT8         groups of 128, amax at least 1e-10: fp32 scale = amax / 127, q = x * (127 / amax) to the nearest
 *   INT8_ROW     the same with one group, the row
 *   E4M3_STATIC  q = e4m3(x * (1 / quant_scale)), which no scale travels with; a NaN stays one, an Inf saturates
 *
 * Scales that are bytes come four to an int32, the lowest byte first, filled up with zeros; the fp32 of a row of NVFP4
 * is the bits of the word behind them. Mode normal needs room for them (params.scales): with a hidden of H, each
 * rounded up, H / 128 with E4M3, E4M3_POW2, INT8; H / 512 with UE8M0; H / 128 with MXFP8, MXFP8_E5M2, MXFP4; H / 64 + 1
 * with NVFP4; 1 with INT8_ROW; 0 with E4M3_STATIC.
 *
 * LOGFMT is of a combine alone: 10 bits a channel, sign and logarithm.
 */
typedef enum {
    /* clang-format off */
    XEP_QUANT_LIST(XEP_QUANT_ENUM_)
    XEP_ENUM_IS_INT(XEP_QUANT)
    /* clang-format on */
} xep_quant_t;

#undef XEP_QUANT_ENUM_

/** "e4m3_pow2" and so on, as xep_perf and Python call it; "unknown" for other values. Static storage, never NULL. */
XEP_API const char *xep_quant_name(xep_quant_t quant);

#ifdef __cplusplus
}
#endif

#endif
