/* SPDX-License-Identifier: BSD-3-Clause */

/** The kernels behind xep_weigh_select(): the scalar ones from an element on, and tables of the others. */
#ifndef XEP_WEIGH_KERNELS_H
#define XEP_WEIGH_KERNELS_H

#include "weigh.h"

enum { XEP_WEIGH_BF16, XEP_WEIGH_FP16, XEP_WEIGH_FP32, XEP_WEIGH_TYPES };

/** Elements from .. elems - 1: the whole of the scalar kernels, the tail of the others. type is XEP_WEIGH_*. */
void xep_weigh_from(int type, void *out, const void *const *rows, const float *weights, size_t n, size_t from,
                    size_t elems);

void xep_weigh_wide_from(float *out, const void *const *rows, size_t n, size_t from, size_t elems);

#if defined(__x86_64__)
void xep_weigh_wide_avx2(float *out, const void *const *rows, size_t n, size_t elems);
void xep_weigh_wide_avx512(float *out, const void *const *rows, size_t n, size_t elems);
extern const xep_weigh_fn xep_weigh_avx2[XEP_WEIGH_TYPES][2]; /* [type][streaming] */
extern const xep_weigh_fn xep_weigh_avx512[XEP_WEIGH_TYPES][2];
#elif defined(__aarch64__)
void xep_weigh_wide_neon(float *out, const void *const *rows, size_t n, size_t elems);
extern const xep_weigh_fn xep_weigh_neon[XEP_WEIGH_TYPES][2];
#endif

#endif
