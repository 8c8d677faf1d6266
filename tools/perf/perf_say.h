/* SPDX-License-Identifier: BSD-3-Clause */

/** What xep_perf tells people: each sentence once, however many ranks there are. */
#ifndef PERF_SAY_H
#define PERF_SAY_H

#include "perf.h"

/** Prints a sentence, from rank 0 alone. */
void perf_say(const perf_t *perf, const char *format, ...) __attribute__((format(printf, 2, 3)));

/**
 * Ends the run where a call has failed: says xep_last_error() once, aborts the group so that nobody waits for this
 * rank, closes everything and exits. XEP_OK: returns.
 */
void perf_must(perf_t *perf, xep_status_t status);

/** Lets rank 0 say what is wrong before this rank's exit makes the launcher end the job. */
void perf_leave_word(void);

/** What every rank has: own of each, bytes long; free() frees it. Collective. */
void *perf_gather(perf_t *perf, const void *own, size_t bytes);

/** Ends the run if some rank has a complaint: rank 0 prints that of the lowest. Collective. */
void perf_stop_if(perf_t *perf, const char *complaint, int exit_status);

/** Likewise of what was tested, whose result is reported. Collective. */
void perf_fail_if(perf_t *perf, const char *complaint, const char **result_p);

/** Likewise if some rank has a difference. Collective. */
void perf_compared(perf_t *perf, const char *what, const oracle_difference_t *difference);

/** A line every ten seconds, which says how many are done of all. */
void perf_progress(perf_t *perf, const char *what, uint64_t done, uint64_t all);

/** The rank the launcher gave, before there is a group; -1: not known. */
int perf_launch_rank(void);

#endif
