/* SPDX-License-Identifier: BSD-3-Clause */

/** What xep_run tells the user. */
#ifndef RUN_SAY_H
#define RUN_SAY_H

/** One line on stderr, "xep_run: " before it. */
void run_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
