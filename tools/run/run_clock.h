/* SPDX-License-Identifier: BSD-3-Clause */

/** The time xep_run goes by. */
#ifndef RUN_CLOCK_H
#define RUN_CLOCK_H

#include <stdint.h>

/** Milliseconds of a clock that nobody sets. */
int64_t run_clock_ms(void);

#endif
