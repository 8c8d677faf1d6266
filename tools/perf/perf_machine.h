/* SPDX-License-Identifier: BSD-3-Clause */

/** What the machine a rank runs on has: memory that is free, and an identity. */
#ifndef PERF_MACHINE_H
#define PERF_MACHINE_H

#include <stdint.h>

/** Bytes that may still be used, by the kernel's estimate and the control group's limit. */
uint64_t perf_free_memory(void);

/** Equal where processes read the same CLOCK_MONOTONIC: of the boot and the time namespace. */
uint64_t perf_machine_id(void);

#endif
