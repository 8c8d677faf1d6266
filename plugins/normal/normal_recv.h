/* SPDX-License-Identifier: BSD-3-Clause */

/** What the user sees of a dispatch. */
#ifndef XEP_NORMAL_RECV_H
#define XEP_NORMAL_RECV_H

#include "normal.h"

/** Fills op's recv: the rows are counted. */
void normal_show_rows(normal_t *mode, const xep_op_t *op);

/** The same without counts, which the caller fills in, of so many rows; whether they are weighted is known. */
void normal_fill_recv(const normal_t *mode, const xep_op_t *op, uint64_t rows);

/** Counts [L] selections of the local experts in the rows that recv shows; rounds them up as op's caller wants. */
void normal_count_selections(const normal_t *mode, const xep_op_t *op, uint64_t *local);
void normal_align_experts(const normal_t *mode, const xep_op_t *op, uint64_t *rows);

/** Rows beyond those received, where the capacity is fixed: no expert. */
void normal_show_tail(const xep_op_t *op);

#endif
