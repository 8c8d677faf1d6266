/* SPDX-License-Identifier: BSD-3-Clause */

/** The result for programs, in a file. */
#ifndef PERF_JSON_H
#define PERF_JSON_H

#include "perf.h"
#include "perf_time.h"

/** Before a long run: NULL, or why rank 0 cannot write the file. */
const char *perf_json_complaint(const perf_t *perf, char *text, size_t bytes);

/** 0, or -1 and said why. */
int perf_json_write(const perf_t *perf, const perf_times_t *times);

#endif
