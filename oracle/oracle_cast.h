/* SPDX-License-Identifier: BSD-3-Clause */

/** What casts make of a row, and what is left of it when it is cast back: xep_quant_t in plain loops. */
#ifndef ORACLE_CAST_H
#define ORACLE_CAST_H

#include <stddef.h>
#include <stdint.h>

#include "oracle_data.h"

/** Type, elements and bytes of a row as it is received, and its scales: with quant, what the cast makes. */
xep_dtype_t oracle_received_dtype(const oracle_shape_t *shape);
uint32_t oracle_received_hidden(const oracle_shape_t *shape);
xep_dtype_t oracle_received_scales_dtype(const oracle_shape_t *shape);
size_t oracle_received_bytes(const oracle_shape_t *shape);
uint32_t oracle_received_scales(const oracle_shape_t *shape);

/** The n-th cast of a dispatch, from 0, and round again; how many there are. */
xep_quant_t oracle_cast_at(uint64_t n);
uint32_t oracle_casts(void);

/** By shape->quant: q [oracle_received_bytes()], scales [oracle_received_scales()]. */
void oracle_cast_row(const oracle_shape_t *shape, const void *row, uint8_t *q, uint32_t *scales);

/**
 * What a row is after its journey in a combine: cast by shape->quant, or as LogFMT, and back to bf16; of shape->dtype,
 * which is bf16 for LogFMT.
 */
void oracle_cast_journey(const oracle_shape_t *shape, const void *row, uint16_t *arrived);

/** Bytes of a row on its way in a combine, by shape->combine_quant; of LogFMT where all of it can be coded. */
size_t oracle_travel_bytes(const oracle_shape_t *shape);

/* ---- oracle_cast_logfmt.c ---- */

/* LogFMT-10 of rows of bf16, one channel after the other by the formulas: what the library's codec is compared with. */

/**
 * What a row is after its journey, in arrived; returns the bytes it took. *most_code_p: raised to the largest code in
 * it.
 */
size_t oracle_logfmt_journey(const uint16_t *row, size_t channels, uint16_t *arrived, int *most_code_p);

#endif
