/* SPDX-License-Identifier: BSD-3-Clause */

/** The same operations twice, for many seeds. */
#ifndef PERF_PRESSURE_H
#define PERF_PRESSURE_H

#include "perf.h"

/** Runs every seed twice and compares hashes. 0 or the exit status. Collective. */
int perf_pressure(perf_t *perf);

#endif
