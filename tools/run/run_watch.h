/* SPDX-License-Identifier: BSD-3-Clause */

/** While the job runs: ranks that end, signals that come, time that passes. */
#ifndef RUN_WATCH_H
#define RUN_WATCH_H

#include <signal.h>
#include <stdint.h>
#include <sys/types.h>

#include "run.h"
#include "run_keeper.h"
#include "run_output.h"
#include "run_server.h"

typedef struct run_job {
    const run_options_t *options;
    run_keeper_t *keeper;
    run_server_t *server;
    run_output_t *output; /* NULL: ranks write to our own */
    pid_t *pids;          /* [nranks] 0: ended */
    uint32_t running;
    int verdict; /* exit status of the job so far: of what failed first */
    int signal_fd;
    int64_t limit_at; /* ms; when the job is ended; INT64_MAX: never */
    int64_t kill_at;  /* ms; when ranks that were asked to end are killed; INT64_MAX: not asked */
} run_job_t;

/**
 * The signals that are watched for: those that we were not told to ignore. To be blocked before any thread is
 * started.
 */
void run_watch_signals(sigset_t *signals);

/** Asks the ranks to end; those that do not within a grace period are killed. */
void run_watch_stop(run_job_t *job, int signal_number);

/** Returns when no rank is left. */
void run_watch_ranks(run_job_t *job);

/** Returns when the output is written, or at once when the user asks for the end. */
void run_watch_output(run_job_t *job);

#endif
