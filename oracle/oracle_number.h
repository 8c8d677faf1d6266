/* SPDX-License-Identifier: BSD-3-Clause */

/** Rows of 16-bit and 32-bit floats in plain loops: the definition the oracle checks against. */
#ifndef ORACLE_NUMBER_H
#define ORACLE_NUMBER_H

#include <stddef.h>
#include <stdint.h>

#include <xep/xep.h>

/** Bytes of an element of any type xep.h names. */
size_t oracle_element_bytes(xep_dtype_t dtype);

float oracle_bf16_to_float(uint16_t bits);
float oracle_fp16_to_float(uint16_t bits);

/** Nearest, ties to even; NaN is the positive quiet one without payload. */
uint16_t oracle_float_to_bf16(float value);
uint16_t oracle_float_to_fp16(float value);

/** sum[h] += row[h]; XEP_BF16, XEP_FP16, XEP_FP32. */
void oracle_row_add(float *sum, const void *row, xep_dtype_t dtype, uint32_t hidden);

/** sum[h] = fma(weight, row[h], sum[h]), the same types. */
void oracle_row_add_weighted(float *sum, float weight, const void *row, xep_dtype_t dtype, uint32_t hidden);

/** Element h of a row of these types. */
float oracle_element(const void *row, xep_dtype_t dtype, uint32_t h);

/** e4m3: nearest, ties to even; beyond 448 it is that, NaN is 0x7f. */
uint8_t oracle_float_to_e4m3(float value);

/** row[h] = sum[h], rounded once, NaN as above. */
void oracle_row_round(void *row, const float *sum, xep_dtype_t dtype, uint32_t hidden);

/** Element at as text: its bits, and its value where it is a float of 16 bits or more. */
void oracle_element_text(const void *row, uint32_t at, xep_dtype_t dtype, char *text, size_t bytes);

#endif
