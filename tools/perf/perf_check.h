/* SPDX-License-Identifier: BSD-3-Clause */

/** Compares every byte of every kind of operation with the oracle. */
#ifndef PERF_CHECK_H
#define PERF_CHECK_H

#include "perf.h"

/** Dispatches and combines in every way there is and compares all of it. Collective. */
void perf_check(perf_t *perf, uint64_t payload);

/** Compares what perf_dispatch() and perf_combine() just brought. Collective. */
void perf_check_outputs(perf_t *perf);

/** The same operations twice, for many seeds: compares hashes. Collective. */
void perf_pressure(perf_t *perf);

#endif
