/* SPDX-License-Identifier: BSD-3-Clause */

/** Rows of 16-bit and 32-bit floats in plain loops: the definition the oracle checks against. */
#ifndef TOOL_NUMBER_H
#define TOOL_NUMBER_H

#include <stddef.h>
#include <stdint.h>

#include <xep/xep.h>

/** Bytes of an element of any type xep.h names. */
size_t tool_element_bytes(xep_dtype_t dtype);

/** "bf16" and the like. */
const char *tool_dtype_name(xep_dtype_t dtype);

float tool_bf16_to_float(uint16_t bits);
float tool_fp16_to_float(uint16_t bits);

/** Nearest, ties to even. */
uint16_t tool_float_to_bf16(float value);
uint16_t tool_float_to_fp16(float value);

/** sum[h] += row[h]; XEP_BF16, XEP_FP16, XEP_FP32. */
void tool_row_add(float *sum, const void *row, xep_dtype_t dtype, uint32_t hidden);

/** sum[h] = fma(weight, row[h], sum[h]), the same types. */
void tool_row_add_weighted(float *sum, float weight, const void *row, xep_dtype_t dtype, uint32_t hidden);

/** Element h of a row of these types. */
float tool_element(const void *row, xep_dtype_t dtype, uint32_t h);

/** e4m3: nearest, ties to even; beyond 448 it is that, NaN is 0x7f. */
uint8_t tool_float_to_e4m3(float value);

/** row[h] = sum[h], rounded once. */
void tool_row_round(void *row, const float *sum, xep_dtype_t dtype, uint32_t hidden);

/** Element at as text: its bits, and its value where it is a float of 16 bits or more. */
void tool_element_text(const void *row, uint32_t at, xep_dtype_t dtype, char *text, size_t bytes);

#endif
