/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The output of the ranks, a label before each line. On a thread of its own: a reader of ours
 * that is slow, or stopped, keeps nobody from watching the ranks.
 */
#ifndef RUN_OUTPUT_H
#define RUN_OUTPUT_H

#include <stdint.h>

typedef struct run_output run_output_t;

/** Reads the output of nranks ranks and labels it. 0, or -1 after a message. */
int run_output_open(uint32_t nranks, run_output_t **output_p);

/** In a rank, after fork: makes its stdout and stderr ours. */
void run_output_attach(run_output_t *output, uint32_t rank);

/** All ranks are started: begins. */
int run_output_start(run_output_t *output);

/** Readable when every writer is gone and all is written. */
int run_output_done_fd(const run_output_t *output);

#endif
