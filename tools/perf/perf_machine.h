/* SPDX-License-Identifier: BSD-3-Clause */

/** What a rank sees of its machine: memory that is free, an identity, its name, and time. */
#ifndef PERF_MACHINE_H
#define PERF_MACHINE_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

/** Bytes that may still be used, by the kernel's estimate and the control group's limit. */
uint64_t perf_free_memory(void);

/** Equal where processes read the same CLOCK_MONOTONIC: of the boot and the time namespace. */
uint64_t perf_machine_id(void);

/** For people: "16 x AMD EPYC 7B13", how many processors there are, and which. */
void perf_machine_name(char *text, size_t bytes);

/** How this process was started, "xep_perf --tokens 128", cut where it does not fit. */
void perf_command_line(char *text, size_t bytes);

/**
 * CLOCK_MONOTONIC; CLOCK_PROCESS_CPUTIME_ID: of all threads, with XEP_THREADS or a progress thread more than the time
 * that has passed; CLOCK_THREAD_CPUTIME_ID: of this one.
 */
uint64_t perf_clock_ns(clockid_t clock);

#endif
