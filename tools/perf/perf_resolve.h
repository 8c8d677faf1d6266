/* SPDX-License-Identifier: BSD-3-Clause */

/** What options mean together, and which of them do not go together. Each returns 0, or -1 and a sentence in why. */
#ifndef PERF_RESOLVE_H
#define PERF_RESOLVE_H

#include "perf_params.h"

/** What a row is: its type, its cast, its arrangement. */
int perf_resolve_rows(perf_options_t *options, char *why, size_t why_bytes);

/** The memory rows lie in, and what only one kind of it has. */
int perf_resolve_memory(perf_options_t *options, char *why, size_t why_bytes);

/** The job of --simulate, and what has no meaning with it. */
int perf_resolve_cluster(perf_options_t *options, char *why, size_t why_bytes);

/** All else. */
int perf_resolve_others(const perf_options_t *options, char *why, size_t why_bytes);

/** Whether --balance can be used with the other options. */
int perf_resolve_balance(const perf_options_t *options, char *why, size_t why_bytes);

#endif
