/* SPDX-License-Identifier: BSD-3-Clause */

/** Rounds of rows that experts pass back as they got them: what comes back is known without an oracle. */
#ifndef TEST_CUDA_ROUNDS_H
#define TEST_CUDA_ROUNDS_H

#include "cuda_job.h"

enum { CUDA_ROUND_HIDDEN = 96, CUDA_ROUND_TOKENS = 50, CUDA_ROUND_BYTES = 4 * CUDA_ROUND_HIDDEN * CUDA_ROUND_TOKENS };

/** A case of fp32 rows, some of whose selections are masked; mode is "normal" or "ll". */
mp_case_t cuda_round_case(const char *name, const char *mode);

/** Rows of a round, of CUDA_ROUND_BYTES at most. */
void cuda_round_fill(float *x, int round, uint64_t tokens);

/** How many copies of a token a combine sums when a job's experts pass its rows back; a check of all its sums. */
int cuda_round_copies(const mp_job_t *job, uint64_t token);
void cuda_round_check(const mp_job_t *job, const float *out, int round);

/**
 * What experts have to do to pass back rows, on the combine's stream: enqueues it, or names the rows as the combine's
 * own. Rows that a dispatch of mode ll brought are always named.
 */
void cuda_round_pass_back(xep_handle_t *handle, xep_combine_args_t *b, int named);

/** Nothing waits between operations but, in mode normal, for counts: streams alone keep the rows apart. */
void cuda_rounds_in_a_row(xep_group_t *group, const char *mode, void *streams[2]);

#endif
