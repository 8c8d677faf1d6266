/* SPDX-License-Identifier: BSD-3-Clause */

/** What a rank sees of its machine: memory that is free, an identity, and time. */
#ifndef PERF_MACHINE_H
#define PERF_MACHINE_H

#include <stdint.h>

/** Bytes that may still be used, by the kernel's estimate and the control group's limit. */
uint64_t perf_free_memory(void);

/** Equal where processes read the same CLOCK_MONOTONIC: of the boot and the time namespace. */
uint64_t perf_machine_id(void);

/* ---- time, in nanoseconds ---- */

/** Of a clock that goes on. */
uint64_t perf_clock_ns(void);

/** Of the processor, spent by this process. */
uint64_t perf_clock_cpu_ns(void);

#endif
