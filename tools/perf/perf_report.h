/* SPDX-License-Identifier: BSD-3-Clause */

/** The result for people, on stdout. */
#ifndef PERF_REPORT_H
#define PERF_REPORT_H

#include "perf.h"
#include "perf_time.h"

void perf_report(const perf_t *perf, const perf_times_t *times);

#endif
