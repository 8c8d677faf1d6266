/* SPDX-License-Identifier: BSD-3-Clause */

/** The kernels behind xep_weigh_select(): the scalar ones from an element on, and tables of the others. */
#ifndef XEP_WEIGH_KERNELS_H
#define XEP_WEIGH_KERNELS_H

#include "weigh.h"

enum { XEP_WEIGH_BF16, XEP_WEIGH_FP16, XEP_WEIGH_FP32, XEP_WEIGH_TYPES };

/** Elements from .. elems - 1: the whole of the scalar kernels, the tail of the others. type is XEP_WEIGH_*. */
void xep_weigh_from(int type, void *out, const void *const *rows, const float *weights, size_t n, size_t from,
                    size_t elems);

/** The same of rows that are not all of one type, which is XEP_WEIGH_BF16 or XEP_WEIGH_FP16 of those not wide. */
void xep_weigh_mixed_from(int type, int wide_out, void *out, const void *const *rows, const uint8_t *wide, size_t n,
                          size_t from, size_t elems);

enum { XEP_WEIGH_NARROW = XEP_WEIGH_FP32 }; /* types that are narrower than a sum */

#if defined(__x86_64__)
extern const xep_weigh_mixed_fn xep_weigh_mixed_avx2[XEP_WEIGH_NARROW][2]; /* [type][wide_out] */
extern const xep_weigh_mixed_fn xep_weigh_mixed_avx512[XEP_WEIGH_NARROW][2];
extern const xep_weigh_fn xep_weigh_avx2[XEP_WEIGH_TYPES][2]; /* [type][streaming] */
extern const xep_weigh_fn xep_weigh_avx512[XEP_WEIGH_TYPES][2];
#elif defined(__aarch64__)
extern const xep_weigh_mixed_fn xep_weigh_mixed_neon[XEP_WEIGH_NARROW][2];
extern const xep_weigh_fn xep_weigh_neon[XEP_WEIGH_TYPES][2];
#endif

#endif
