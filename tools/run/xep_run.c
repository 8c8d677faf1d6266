/* SPDX-License-Identifier: BSD-3-Clause */

/** xep_run: starts the ranks of a job on this machine; a PMIx server and nothing else. */
#define _GNU_SOURCE

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <trace_merge.h>

#include "run.h"
#include "run_keeper.h"
#include "run_output.h"
#include "run_server.h"
#include "run_spawn.h"
#include "run_watch.h"

/* ---- a job whose ranks have XEP_TRACE ---- */

/* As the ranks will see it: the last -x wins over our own environment. NULL: there is no trace. */
static const char *trace_file(const run_options_t *options)
{
    static const char name[] = "XEP_TRACE=";
    const char *file = getenv("XEP_TRACE");
    for (size_t i = 0; i < options->nsets; i++)
        if (strncmp(options->sets[i], name, sizeof name - 1) == 0) file = options->sets[i] + sizeof name - 1;
    return file == NULL || *file == '\0' ? NULL : file;
}

/* Files of an earlier job would be taken for those of this one. */
static void begin_trace(const run_options_t *options)
{
    const char *file = trace_file(options);
    if (file != NULL) trace_remove_journals(file, options->nranks);
}

/* The job is over, so nobody writes any more. */
static void end_trace(const run_options_t *options)
{
    const char *file = trace_file(options);
    if (file != NULL && trace_merge(file) != TRACE_NOTHING) trace_remove_journals(file, options->nranks);
}

/* ---- a job ---- */

static void say_cannot_run(const char *program, int error)
{
    if (error == ENOENT && strchr(program, '/') == NULL)
        run_say("cannot run %s: it is in no folder of PATH (give its path; for one in this folder: ./%s)", program,
                program);
    else run_say("cannot run %s: %s", program, strerror(error));
}

/* 0, or the exit status after a message */
/* The environment is made for each rank and freed here: the child has its own. */
static int start_rank(run_job_t *job, uint32_t rank, const sigset_t *signals)
{
    int status = RUN_EXIT_SELF, error;
    char **env = run_environ_make(job->options);
    if (env == NULL) {
        run_say("out of memory");
        return status;
    }
    if (run_server_environ(job->server, rank, &env) != 0) goto out;
    error = run_spawn(job->options, rank, env, job->output, signals, &job->pids[rank]);
    if (error != 0) {
        say_cannot_run(job->options->program[0], error);
        status = RUN_EXIT_EXEC;
        goto out;
    }
    run_keeper_tell(job->keeper, job->pids[rank]);
    job->running++;
    status = 0;
out:
    run_environ_free(env);
    return status;
}

/* A rank that cannot be started ends those that have been. The output is read from when all have their ends of it. */
static void start_ranks(run_job_t *job, const sigset_t *signals)
{
    for (uint32_t i = 0; i < job->options->nranks && job->verdict == 0; i++) job->verdict = start_rank(job, i, signals);
    if (job->output != NULL && run_output_start(job->output) != 0) {
        job->verdict = RUN_EXIT_SELF;
        job->output = NULL; /* nobody reads it, so nobody would tell that it has ended */
    }
    if (job->verdict != 0) run_watch_stop(job, SIGTERM);
}

/*
 * signals: of ranks. Returns the exit status. In an order that counts: ranks, then all that they left, then what these
 * have still written, then the trace that nobody writes to any more. Nothing is freed: the process ends here.
 */
static int run_job(const run_options_t *options, run_keeper_t *keeper, int signal_fd, const sigset_t *signals)
{
    run_job_t job = {.options = options,
                     .keeper = keeper,
                     .signal_fd = signal_fd,
                     .limit_at = options->limit_ms == 0 ? INT64_MAX : run_clock_ms() + options->limit_ms,
                     .kill_at = INT64_MAX};
    job.pids = calloc(options->nranks, sizeof *job.pids);
    if (job.pids == NULL) return RUN_EXIT_SELF;
    if (run_server_open(options->nranks, keeper->folder.path, &job.server) != 0) return RUN_EXIT_SELF;
    if (options->label && run_output_open(options->nranks, &job.output) != 0) return RUN_EXIT_SELF;
    begin_trace(options);
    start_ranks(&job, signals);
    run_watch_ranks(&job);
    run_spawn_sweep(keeper->pid, job.kill_at == INT64_MAX ? 0 : job.kill_at);
    run_watch_output(&job);
    end_trace(options);
    return job.verdict;
}

/*
 * The keeper is there before the server, which writes in its folder, and is closed when no rank is left. SIGPIPE is
 * ignored, as a reader of our output that goes away must not end us before the ranks; run_spawn.c gives ranks the
 * default again. As a subreaper we become the parent of what ranks leave behind, and so can find and end it.
 */
int main(int argc, char **argv)
{
    run_options_t options;
    run_keeper_t keeper = {.news_fd = -1};
    sigset_t watched, inherited;
    int status = run_options_parse(&options, argc, argv);
    if (status >= 0) return status;

    /* blocked before the server's thread exists, which must not take them; ranks get the mask that we had */
    run_watch_signals(&watched);
    sigprocmask(SIG_BLOCK, &watched, &inherited);
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    int signal_fd = signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);

    status = RUN_EXIT_SELF;
    if (signal_fd < 0) {
        run_say("no descriptor for signals: %s", strerror(errno));
    } else if (run_keeper_open(&keeper) == 0) {
        status = run_job(&options, &keeper, signal_fd, &inherited);
        run_keeper_close(&keeper);
    }
    /* without PMIx_server_finalize, which can spin for ever (4.2.2, after a group operation with a time limit),
     * and without the destructors that a thread of the library would meet: nothing is left to be undone */
    fflush(NULL);
    _exit(status);
}
