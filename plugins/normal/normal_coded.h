/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Combines whose rows take fewer bits to ranks that are not mapped (args.quant). Flat, an owner encodes its outputs for
 * a reader in "coded" of its slot, as they are sent; by nodes, the sums for another node. They lie in the reader's
 * "returned" side by side, and it decodes them as it sums, in memory of the thread that does. All else is as without.
 *
 * Why "coded" is not written while it is read: puts of a combine are flushed before it ends, and a slot has one
 * operation at a time.
 */
#ifndef XEP_NORMAL_CODED_H
#define XEP_NORMAL_CODED_H

#include "normal.h"

/** Reserves memory for them, which is not touched before it is used: there may be none. */
void normal_lay_coded(normal_t *mode);

/** Of a combine with quant: chooses these steps if they are needed. */
xep_status_t normal_choose_coded(normal_t *mode, xep_op_t *op);

/** Their steps. */
extern const xep_step_t normal_coded_steps[];

/** Rows that a thread has for itself: as many as a token has terms, each of them bf16; two are one of fp32. */
static inline size_t normal_thread_row(const normal_t *mode)
{
    return xep_row_stride(mode->kit.shape->hidden * (size_t)mode->kit.shape->combine_elem_bytes);
}

static inline char *normal_thread_rows(const normal_t *mode, uint32_t thread)
{
    return mode->decoded + thread * (mode->layout.max_dests + UINT64_C(2)) * normal_thread_row(mode);
}

#endif
