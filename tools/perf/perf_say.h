/* SPDX-License-Identifier: BSD-3-Clause */

/** What xep_perf tells people: each sentence once, however many ranks there are. */
#ifndef PERF_SAY_H
#define PERF_SAY_H

#include "perf.h"

/** Prints a sentence, from rank 0 alone. */
void perf_say(const perf_t *perf, const char *format, ...) __attribute__((format(printf, 2, 3)));

/**
 * Ends the run after a failed call: says xep_last_error() once, aborts the group so that
 * nobody waits for this rank, returns the exit status.
 */
int perf_give_up(perf_t *perf, xep_status_t status);

/** Lets rank 0 say what is wrong before this rank's exit makes the launcher end the job. */
void perf_leave_word(void);

/** Whether some rank has a complaint; if so rank 0 prints that of the lowest. Collective. */
int perf_complained(perf_t *perf, const char *complaint);

/** Whether some rank has a difference; if so rank 0 prints that of the lowest. 0 or the exit status. Collective. */
int perf_compared(perf_t *perf, const char *what, const oracle_difference_t *difference);

/** A line on a terminal, rewritten; elsewhere one every ten seconds. Done of all. */
void perf_progress(perf_t *perf, const char *what, uint64_t done, uint64_t all);
void perf_progress_end(perf_t *perf);

/** The rank the launcher gave, before there is a group; -1: not known. */
int perf_launch_rank(void);

#endif
