/* SPDX-License-Identifier: BSD-3-Clause */

/** Time, in nanoseconds. */
#ifndef PERF_CLOCK_H
#define PERF_CLOCK_H

#include <stdint.h>

/** Of a clock that goes on. */
uint64_t perf_clock_ns(void);

/** Of the processor, spent by this process. */
uint64_t perf_clock_cpu_ns(void);

#endif
