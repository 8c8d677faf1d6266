/* SPDX-License-Identifier: BSD-3-Clause */

/** xep_run: the ranks of a job on this machine, started, watched and ended; what its parts share. */
#ifndef XEP_TOOLS_XEP_RUN_H
#define XEP_TOOLS_XEP_RUN_H

#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/** Exit statuses that are not a rank's; as timeout(1) and the shell use them. */
enum { RUN_EXIT_USAGE = 2, RUN_EXIT_TIME = 124, RUN_EXIT_SELF = 125, RUN_EXIT_EXEC = 127, RUN_EXIT_SIGNAL = 128 };

/** One line on stderr, "xep_run: " before it. */
void run_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** Milliseconds of a monotonic clock. */
int64_t run_now_ms(void);

/* ---- xep_run_options.c -------------------------------------------------------- */

typedef struct run_options {
    uint32_t nranks;
    uint32_t nodes;   /* virtual nodes; 0: not drawn */
    int keep_going;   /* a failed rank does not end the others */
    int label;        /* "[rank] " before each line of output */
    int64_t limit_ms; /* of the whole job; 0: none */
    char **sets;      /* [nsets] NAME=VALUE for ranks only */
    size_t nsets;
    char **program;   /* argv of the ranks */
} run_options_t;

/** Fills options, or prints what is asked for or wrong and returns the exit status; -1: go on. */
int run_options_parse(run_options_t *options, int argc, char **argv);

/* ---- xep_run_environ.c -------------------------------------------------------- */

/** A malloc'ed copy of our environment as a rank is to see it, before PMIx adds its part; NULL: no memory. */
char **run_environ_make(const run_options_t *options);
void run_environ_free(char **env);

/* ---- xep_run_keeper.c --------------------------------------------------------- */

/**
 * Owns what must not outlive the job: the folder PMIx writes in, and the ranks' process
 * groups. A process of its own stands by to remove both when xep_run itself is killed.
 */
typedef struct run_keeper {
    char dir[4096];
    int lock_fd; /* held as long as the folder is in use */
    int news_fd; /* to the process that stands by */
    pid_t pid;   /* its id */
} run_keeper_t;

/** 0, or -1 after a message. Also removes folders that a killed predecessor left. */
int run_keeper_open(run_keeper_t *keeper);

/** A process group is there (pid > 0) or gone (-pid). */
void run_keeper_tell(run_keeper_t *keeper, pid_t pid);

/** Removes the folder. */
void run_keeper_close(run_keeper_t *keeper);

/* ---- xep_run_server.c --------------------------------------------------------- */

typedef struct run_server run_server_t;

/** Serves PMIx to nranks ranks to come; files go into dir. 0, or -1 after a message. */
int run_server_open(uint32_t nranks, const char *dir, run_server_t **server_p);

/** Adds to a rank's environment how it reaches the server. 0, or -1 after a message. */
int run_server_environ(run_server_t *server, uint32_t rank, char ***env);

/** Tells the other ranks that one has ended, in a way that they should know of: by its wait status. */
void run_server_rank_ended(run_server_t *server, uint32_t rank, int wait_status);

/** Readable once a rank has asked for the end of the job; then the rank and the status it asked for. */
int run_server_abort_fd(const run_server_t *server);
void run_server_abort_read(run_server_t *server, uint32_t *rank_p, int *status_p);

/* ---- xep_run_output.c --------------------------------------------------------- */

typedef struct run_output run_output_t;

/** Reads the output of nranks ranks and labels it. 0, or -1 after a message. */
int run_output_open(uint32_t nranks, run_output_t **output_p);

/** In a rank, after fork: makes its stdout and stderr ours. */
void run_output_attach(run_output_t *output, uint32_t rank);

/** All ranks are started: begins. */
int run_output_start(run_output_t *output);

/** Readable when every writer is gone and all is written. */
int run_output_done_fd(const run_output_t *output);

/* ---- xep_run_spawn.c ---------------------------------------------------------- */

/**
 * Starts one rank in a session of its own; it dies with us. env is a rank's; output may be NULL.
 * 0 and the pid, or the errno of what failed (the exec included).
 */
int run_spawn(const run_options_t *options, uint32_t rank, char **env, run_output_t *output, const sigset_t *signals,
              pid_t *pid_p);

/**
 * Kills every descendant but the one called spare, and waits for them, for a bounded time. Until grace_until (ms) they
 * may end by themselves: what a script that was a rank has started, and got the same signal as the script.
 */
void run_spawn_sweep(pid_t spare, int64_t grace_until);

/* ---- xep_run_watch.c ---------------------------------------------------------- */

typedef struct run_job {
    const run_options_t *options;
    run_keeper_t *keeper;
    run_server_t *server;
    run_output_t *output; /* NULL: ranks write to our own */
    pid_t *pids;          /* [nranks] 0: ended */
    uint32_t running;
    int verdict;          /* exit status of the job so far: of what failed first */
    int signal_fd;
    int64_t limit_at;     /* ms; when the job is ended; INT64_MAX: never */
    int64_t kill_at;      /* ms; when ranks that were asked to end are killed; INT64_MAX: not asked */
} run_job_t;

/** The signals that are watched for: those that we were not told to ignore. To be blocked before any thread is started. */
void run_watch_signals(sigset_t *signals);

/** Asks the ranks to end; those that do not within a grace period are killed. */
void run_watch_stop(run_job_t *job, int signal_number);

/** Returns when no rank is left. */
void run_watch_ranks(run_job_t *job);

/** Returns when the output is written, or at once on the wish of the user. */
void run_watch_output(run_job_t *job);

#endif
