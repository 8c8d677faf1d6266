/* SPDX-License-Identifier: BSD-3-Clause */

/** What --help says before and behind the options. */
#ifndef PERF_HELP_H
#define PERF_HELP_H

extern const char perf_help_intro[];
extern const char perf_help_explanation[];

#endif
