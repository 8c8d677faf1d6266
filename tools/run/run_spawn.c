/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Between fork and exec only async-signal-safe calls are made: the process has threads. What fails there is told by a
 * pipe that the exec closes.
 */
#define _GNU_SOURCE

#include "run_spawn.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "run.h"

enum { SWEEP_MS = 5000 };

/* 0, or an errno */
/* In the child. The order matters: the parent is looked at after PDEATHSIG is set, as it may have died before. */
static int prepare(uint32_t rank, run_output_t *output, pid_t parent)
{
    setsid(); /* a signal of the terminal comes from us alone, once */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return errno;
    if (getppid() != parent) return ESRCH; /* it was killed before the line above */
    if (rank != 0) {
        int null = open("/dev/null", O_RDONLY);
        if (null < 0) return errno;
        dup2(null, 0);
        if (null != 0) close(null);
    }
    if (output != NULL) run_output_attach(output, rank);
    return 0;
}

/* The child: ends in the program, or with the reason in the pipe. */
static void run_child(const run_options_t *options, uint32_t rank, char **env, run_output_t *output,
                      const sigset_t *signals, pid_t parent, int report_fd)
{
    int error = prepare(rank, output, parent);
    if (error == 0) {
        signal(SIGPIPE, SIG_DFL);
        sigprocmask(SIG_SETMASK, signals, NULL);
        execvpe(options->program[0], options->program, env);
        error = errno;
    }
    if (write(report_fd, &error, sizeof error) < 0) _exit(RUN_EXIT_SELF);
    _exit(RUN_EXIT_EXEC);
}

/* the errno that the child reports, or 0 when it closed the pipe by its exec */
static int read_report(int report_fd)
{
    int error = 0;
    ssize_t bytes;
    do bytes = read(report_fd, &error, sizeof error);
    while (bytes < 0 && errno == EINTR);
    return bytes == (ssize_t)sizeof error ? error : 0;
}

/*
 * Returns when the child has begun its program or has failed, so a program that cannot be run is known before the next
 * rank is started. Our writing end is closed before the pipe is read, or the read would never end. A child that failed
 * is waited for here: nobody else has its pid.
 */
int run_spawn(const run_options_t *options, uint32_t rank, char **env, run_output_t *output, const sigset_t *signals,
              pid_t *pid_p)
{
    int ends[2], error;
    pid_t parent = getpid();
    if (pipe2(ends, O_CLOEXEC) != 0) return errno;
    pid_t pid = fork();
    if (pid == 0) run_child(options, rank, env, output, signals, parent, ends[1]);
    error = pid < 0 ? errno : 0;
    close(ends[1]);
    if (pid > 0) error = read_report(ends[0]);
    close(ends[0]);
    if (error == 0) *pid_p = pid;
    else if (pid > 0) waitpid(pid, NULL, 0);
    return error;
}

/* the parent of a process; -1: it is gone. The name before it, in brackets, may hold anything. */
static pid_t parent_of(const char *pid)
{
    char path[64], text[512];
    int parent = -1;
    snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) return -1;
    size_t bytes = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[bytes] = '\0';
    const char *name_end = strrchr(text, ')');
    if (name_end == NULL || sscanf(name_end + 1, " %*c %d", &parent) != 1) return -1;
    return parent;
}

/* number of children that got it; 0 is a signal that only counts them */
/*
 * From /proc, since xep_run has no list of what ranks have left behind. A process that ends meanwhile leaves its
 * children to xep_run, which finds them in the next round.
 */
static unsigned signal_children(pid_t spare, int number)
{
    unsigned reached = 0;
    struct dirent *entry;
    DIR *dir = opendir("/proc");
    if (dir == NULL) return 0;
    while ((entry = readdir(dir)) != NULL) {
        pid_t pid = (pid_t)atol(entry->d_name);
        if (pid <= 0 || pid == spare || parent_of(entry->d_name) != getpid()) continue;
        if (kill(pid, number) == 0) reached++;
    }
    closedir(dir);
    return reached;
}

/* until none is left, or the time is over */
static void drain_children(pid_t spare, int number, int64_t until)
{
    while (run_clock_ms() < until && signal_children(spare, number) > 0) {
        pid_t pid;
        while ((pid = waitpid(-1, NULL, WNOHANG)) > 0) continue;
        if (pid == 0) nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
}

/* The children of a process that ends become ours (PR_SET_CHILD_SUBREAPER), so this reaches all. */
void run_spawn_sweep(pid_t spare, int64_t grace_until)
{
    drain_children(spare, 0, grace_until);
    drain_children(spare, SIGKILL, run_clock_ms() + SWEEP_MS);
}
