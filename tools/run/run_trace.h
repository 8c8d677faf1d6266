/* SPDX-License-Identifier: BSD-3-Clause */

/** The trace of a job whose ranks have XEP_TRACE: old journals go before it, and at its end one file is made. */
#ifndef RUN_TRACE_H
#define RUN_TRACE_H

#include "run_options.h"

/** Removes what an earlier job has left under these names. */
void run_trace_begin(const run_options_t *options);

/** Merges what the ranks wrote; their files stay where that fails, as a message says. */
void run_trace_end(const run_options_t *options);

#endif
