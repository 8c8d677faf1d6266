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

#endif
