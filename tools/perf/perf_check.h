/* SPDX-License-Identifier: BSD-3-Clause */

/** Compares every byte of every kind of operation with the oracle. */
#ifndef PERF_CHECK_H
#define PERF_CHECK_H

#include "perf.h"

/** Dispatches and combines in every way there is and compares all of it. 0 or the exit status. Collective. */
int perf_check(perf_t *perf, uint64_t payload);

/** Compares what perf_dispatch() and perf_combine() just brought. 0 or the exit status. Collective. */
int perf_check_outputs(perf_t *perf);

/* ---- perf_check_pressure.c ---- */

/* The same operations twice, for many seeds. */

/** Runs every seed twice and compares hashes. 0 or the exit status. Collective. */
int perf_pressure(perf_t *perf);

#endif
