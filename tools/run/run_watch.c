/* SPDX-License-Identifier: BSD-3-Clause */

/* One loop over file descriptors and a clock: signals come by a signalfd, the ends of ranks among them. */
#define _GNU_SOURCE

#include "run_watch.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "run.h"

enum { GRACE_MS = 2000 };

/*
 * Signals that our parent ignores stay ignored, as after nohup. SIGCHLD is blocked and read like all others: there are
 * no handlers.
 */
void run_watch_signals(sigset_t *signals)
{
    static const int watched[] = {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGTSTP};
    struct sigaction action;
    sigemptyset(signals);
    sigaddset(signals, SIGCHLD);
    signal(SIGCHLD, SIG_DFL); /* if ignored, as some parents leave it, the ranks' statuses would be lost */
    for (size_t i = 0; i < sizeof watched / sizeof watched[0]; i++)
        if (sigaction(watched[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN) sigaddset(signals, watched[i]);
}

/* to the groups: also to what a rank that is a script has started */
static void signal_ranks(const run_job_t *job, int number)
{
    for (uint32_t i = 0; i < job->options->nranks; i++)
        if (job->pids[i] != 0) kill(-job->pids[i], number);
}

static int stopping(const run_job_t *job)
{
    return job->kill_at != INT64_MAX;
}

/* The grace period begins with the first call; later ones send their signal, and do not make it longer. */
void run_watch_stop(run_job_t *job, int signal_number)
{
    if (!stopping(job)) job->kill_at = run_clock_ms() + GRACE_MS;
    signal_ranks(job, signal_number);
    signal_ranks(job, SIGCONT); /* a stopped rank gets no other signal */
}

/* The first failure counts: later ones, such as ranks that xep_run has ended, follow from it. */
static void set_verdict(run_job_t *job, int status)
{
    if (job->verdict == 0) job->verdict = status;
}

/* ---- ranks that end ----------------------------------------------------------- */

/* As a shell has it: 128 and the signal. */
static int exit_status_of(int wait_status)
{
    return WIFSIGNALED(wait_status) ? RUN_EXIT_SIGNAL + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

static void say_ended(uint32_t rank, int wait_status)
{
    if (WIFSIGNALED(wait_status))
        run_say("rank %u killed by signal %d (%s)%s", rank, WTERMSIG(wait_status), strsignal(WTERMSIG(wait_status)),
                WCOREDUMP(wait_status) ? ", core dumped" : "");
    else run_say("rank %u exited with status %d", rank, WEXITSTATUS(wait_status));
}

/* The keeper is told first, as the number of this process may belong to another one from now on. */
static void rank_ended(run_job_t *job, uint32_t rank, int wait_status)
{
    run_keeper_tell(job->keeper, -job->pids[rank]);
    job->pids[rank] = 0;
    job->running--;
    if (stopping(job)) return; /* as it was asked to */
    run_server_rank_ended(job->server, rank, wait_status);
    if (exit_status_of(wait_status) == 0) return;
    say_ended(rank, wait_status);
    set_verdict(job, exit_status_of(wait_status));
    if (!job->options->keep_going) run_watch_stop(job, SIGTERM);
}

/* Reaps also orphans of ranks, whose subreaper this is; they are in no list. */
static void reap(run_job_t *job)
{
    int wait_status;
    pid_t pid;
    while ((pid = waitpid(-1, &wait_status, WNOHANG)) > 0)
        for (uint32_t i = 0; i < job->options->nranks; i++)
            if (job->pids[i] == pid) {
                rank_ended(job, i, wait_status);
                break;
            }
}

/* ---- signals and time --------------------------------------------------------- */

/* the shell's stop key stops the job and not its launcher alone */
static void suspend(run_job_t *job)
{
    signal_ranks(job, SIGSTOP);
    raise(SIGSTOP);
    signal_ranks(job, SIGCONT);
}

/* A second time means now. */
static void asked_to_end(run_job_t *job, int number)
{
    set_verdict(job, RUN_EXIT_SIGNAL + number);
    if (stopping(job)) job->kill_at = run_clock_ms();
    run_watch_stop(job, number);
}

/*
 * One signal a round; poll() tells of the next one. Several ranks that end may be one SIGCHLD, so reap() takes all. The
 * default case is SIGHUP, SIGUSR1 and SIGUSR2: they mean something to ranks alone.
 */
static void take_signal(run_job_t *job)
{
    struct signalfd_siginfo info;
    if (read(job->signal_fd, &info, sizeof info) != (ssize_t)sizeof info) return;
    switch (info.ssi_signo) {
    case SIGCHLD: reap(job); break;
    case SIGINT:
    case SIGQUIT:
    case SIGTERM: asked_to_end(job, (int)info.ssi_signo); break;
    case SIGTSTP: suspend(job); break;
    default: signal_ranks(job, (int)info.ssi_signo);
    }
}

/* The status is cut as exit() would cut it, but never to 0: an abort is a failure. */
static void take_abort(run_job_t *job)
{
    uint32_t rank;
    int status;
    run_server_abort_read(job->server, &rank, &status);
    if (stopping(job)) return;
    run_say("rank %u aborted the job with status %d", rank, status);
    set_verdict(job, (status & 0xff) != 0 ? status & 0xff : 1);
    run_watch_stop(job, SIGTERM);
}

static void list_running(const run_job_t *job, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < job->options->nranks && used < bytes; i++)
        if (job->pids[i] != 0) used += (size_t)snprintf(text + used, bytes - used, " %u", i);
}

/*
 * The time limit replaces the status of a rank that failed before, with -k: 124 says why the others were ended. After
 * kill_at ranks are killed anew in every round, until all are reaped.
 */
static void check_time(run_job_t *job)
{
    int64_t now = run_clock_ms();
    if (now >= job->limit_at && !stopping(job)) {
        char ranks[256];
        list_running(job, ranks, sizeof ranks);
        run_say("time limit of %g s passed, still running: rank%s%s", (double)job->options->limit_ms / 1e3,
                job->running == 1 ? "" : "s", ranks);
        job->verdict = RUN_EXIT_TIME;
        run_watch_stop(job, SIGTERM);
    }
    if (now >= job->kill_at) signal_ranks(job, SIGKILL);
}

/* milliseconds until check_time() has something to do; -1: never */
static int time_left(const run_job_t *job)
{
    int64_t now = run_clock_ms(), at = stopping(job) ? job->kill_at : job->limit_at;
    if (at == INT64_MAX) return -1;
    if (at <= now) return 10; /* killed, not yet reaped; a fork of one may have escaped */
    return at - now < INT_MAX ? (int)(at - now) : INT_MAX;
}

/* No timer: time_left() bounds each poll(), and check_time() runs after each, whatever woke it. */
void run_watch_ranks(run_job_t *job)
{
    struct pollfd polls[2] = {{.fd = job->signal_fd, .events = POLLIN},
                              {.fd = run_server_abort_fd(job->server), .events = POLLIN}};
    while (job->running > 0) {
        int ready = poll(polls, 2, time_left(job));
        if (ready > 0 && polls[1].revents != 0) take_abort(job); /* first: the end of the rank follows from it */
        if (ready > 0 && polls[0].revents != 0) take_signal(job);
        check_time(job);
    }
}

/* The ranks are gone, so a signal ends the wait for what they have left. */
static int asks_for_the_end(int signal_fd)
{
    struct signalfd_siginfo info;
    if (read(signal_fd, &info, sizeof info) != (ssize_t)sizeof info) return 0;
    return info.ssi_signo == SIGINT || info.ssi_signo == SIGQUIT || info.ssi_signo == SIGTERM;
}

/*
 * After the ranks have ended, processes that they started may still write: waits until these end, the time is over, or
 * a signal comes.
 */
void run_watch_output(run_job_t *job)
{
    if (job->output == NULL) return;
    struct pollfd polls[2] = {{.fd = job->signal_fd, .events = POLLIN},
                              {.fd = run_output_done_fd(job->output), .events = POLLIN}};
    for (;;) {
        int ready = poll(polls, 2, time_left(job));
        if (ready == 0 && run_clock_ms() >= job->limit_at) break;
        if (ready > 0 && polls[1].revents != 0) break;
        if (ready > 0 && asks_for_the_end(job->signal_fd)) break;
    }
}
