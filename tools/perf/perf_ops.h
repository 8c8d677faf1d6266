/* SPDX-License-Identifier: BSD-3-Clause */

/** One step of every rank: options.slots operations each, and what stands between them. */
#ifndef PERF_OPS_H
#define PERF_OPS_H

#include "perf.h"

xep_status_t perf_dispatch(perf_t *perf);
xep_status_t perf_combine(perf_t *perf);

/** Computes for so many rounds on a few kilobytes. */
void perf_compute(uint64_t rounds);

/** Writes the experts' outputs for every handle, where combine will read them. */
xep_status_t perf_experts(perf_t *perf);
void perf_release(perf_t *perf);

/** Makes the handle whose routing --cached uses. */
xep_status_t perf_open_base(perf_t *perf);

/** The arguments of the timed operations, for variations. */
void perf_dispatch_args(const perf_t *perf, xep_dispatch_args_t *args_p);
void perf_combine_args(const perf_t *perf, uint32_t slot, xep_combine_args_t *args_p);

/** Contents of the payloads that dispatches have. */
void perf_fill_payloads(const perf_t *perf);

/* ---- perf_ops_in_place.c ---- */

/* --in-place: rows that consumers read where their source has them, and what that saves one who reads each once. */

/** What comes before a dispatch, untimed: rows are written where peers may read them; the dispatch takes them there. */
xep_status_t perf_in_place_rows(perf_t *perf);

/** Dispatches, and reads every byte of every received row once, wherever it is. */
xep_status_t perf_in_place_read(perf_t *perf);

#endif
