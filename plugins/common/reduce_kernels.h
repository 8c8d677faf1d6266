/* SPDX-License-Identifier: BSD-3-Clause */

/** The kernels behind xep_reduce_select(): scalar ones from an element on, and tables of the others. */
#ifndef XEP_REDUCE_KERNELS_H
#define XEP_REDUCE_KERNELS_H

#include "reduce.h"

enum { XEP_REDUCE_BF16, XEP_REDUCE_FP16, XEP_REDUCE_FP32, XEP_REDUCE_TYPES };

/* Elements from .. elems - 1: the whole of the scalar kernels, the tail of the others. */
void xep_reduce_bf16_from(void *out, const void *const *rows, size_t n, size_t from, size_t elems);
void xep_reduce_fp16_from(void *out, const void *const *rows, size_t n, size_t from, size_t elems);
void xep_reduce_fp32_from(void *out, const void *const *rows, size_t n, size_t from, size_t elems);

#if defined(__x86_64__)
extern const xep_reduce_fn xep_reduce_avx2[XEP_REDUCE_TYPES][2];   /* [type][streaming] */
extern const xep_reduce_fn xep_reduce_avx512[XEP_REDUCE_TYPES][2];
#endif

#endif
