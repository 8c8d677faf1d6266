/* SPDX-License-Identifier: BSD-3-Clause */

/** Messages of a merge, on standard error. */
#ifndef TRACE_SAY_H
#define TRACE_SAY_H

/** One line, without its newline. */
void trace_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
