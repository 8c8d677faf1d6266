/* SPDX-License-Identifier: BSD-3-Clause */

/** What xep_run tells the user, and the time it goes by. */
#ifndef RUN_SAY_H
#define RUN_SAY_H

#include <stdint.h>

/** One line on stderr, "xep_run: " before it. */
void run_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- time ---- */

/** Milliseconds of a clock that nobody sets. */
int64_t run_clock_ms(void);

#endif
