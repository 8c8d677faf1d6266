/* SPDX-License-Identifier: BSD-3-Clause */

/** The command line: its options, their help, and what they mean. */
#ifndef PERF_OPTIONS_H
#define PERF_OPTIONS_H

#include "perf_params.h"

/** 0, or -1 and a sentence in why. Nothing is printed. */
int perf_options_parse(int argc, char **argv, perf_options_t *options_p, char *why, size_t why_bytes);

/** Puts a value of the sweep in its place. */
void perf_options_sweep(perf_options_t *options, uint32_t at);

/** To stdout. */
void perf_options_help(void);

/* ---- perf_options_help.c ---- */

/* What --help says before and behind the options. */

extern const char perf_help_intro[];
extern const char perf_help_explanation[];

#endif
