/* SPDX-License-Identifier: BSD-3-Clause */

/** The kernels that make bf16 of what a cast has made (codec.h). */
#ifndef XEP_DECODE_H
#define XEP_DECODE_H

#include "cast_formats.h"

/** Channels of a group, the first of which begins with a byte of q, by the definition. */
void xep_decode_group(const xep_cast_element_t *element, uint16_t *row, const uint8_t *q, size_t elems, float scale);

/** Rows, as xep_decode_fn has it. */
void xep_decode_scalar(xep_quant_t quant, uint16_t *row, const void *q, const void *scales, size_t elems, float given);
#if defined(__x86_64__)
void xep_decode_avx2(xep_quant_t quant, uint16_t *row, const void *q, const void *scales, size_t elems, float given);
#elif defined(__aarch64__)
void xep_decode_neon(xep_quant_t quant, uint16_t *row, const void *q, const void *scales, size_t elems, float given);
#endif

#endif
