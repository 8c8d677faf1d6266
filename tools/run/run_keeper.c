/* SPDX-License-Identifier: BSD-3-Clause */

#define _GNU_SOURCE

/*
 * A process that outlives xep_run for a moment: it reads a pipe whose other end only xep_run has, so it notices the
 * death of xep_run, even by SIGKILL. Then it kills what still runs and removes the folder.
 */
#include "run_keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "run.h"

/* ---- the process that stands by ------------------------------------------------ */

/* the groups of the ranks that run, in no order; a fixed array: nothing can be told to a process without memory */
typedef struct groups {
    pid_t pids[4096];
    size_t count;
} groups_t;

/* A pid is a group that begins; its negative is one that has ended, whose number may be used again. */
static void groups_note(groups_t *groups, pid_t news)
{
    size_t i = 0;
    if (news > 0) {
        if (groups->count < sizeof groups->pids / sizeof groups->pids[0]) groups->pids[groups->count++] = news;
        return;
    }
    while (i < groups->count && groups->pids[i] != -news) i++;
    if (i < groups->count) groups->pids[i] = groups->pids[--groups->count];
}

/* Reads until xep_run is gone or has closed its end; in the latter case all groups were reported gone. */
static void stand_by(int news_fd, run_folder_t *folder)
{
    groups_t groups = {.count = 0};
    pid_t news;
    ssize_t bytes;
    while ((bytes = read(news_fd, &news, sizeof news)) != 0) {
        if (bytes < 0 && errno != EINTR) break;
        if (bytes == (ssize_t)sizeof news) groups_note(&groups, news);
    }
    for (size_t i = 0; i < groups.count; i++) kill(-groups.pids[i], SIGKILL);
    run_folder_remove(folder);
}

/* closes what other processes wait to see closed, and leaves the terminal's process group */
static void detach(void)
{
    int null = open("/dev/null", O_RDWR);
    setsid();
    prctl(PR_SET_NAME, "xep_run keeper");
    for (int fd = 0; fd < 3 && null >= 0; fd++) dup2(null, fd);
    if (null > 2) close(null);
}

/*
 * Forked before PMIx has threads. O_CLOEXEC keeps the end of the pipe from the ranks: with one of them holding it, it
 * would never close.
 */
static int start_standing_by(run_keeper_t *keeper)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return -1;
    keeper->pid = fork();
    if (keeper->pid == 0) {
        close(ends[1]);
        detach();
        stand_by(ends[0], &keeper->folder);
        _exit(0);
    }
    close(ends[0]);
    keeper->news_fd = ends[1];
    if (keeper->pid > 0) return 0;
    close(ends[1]);
    return -1;
}

/* ---- one job's ---- */

/* The folder first: the process that stands by inherits its descriptor, and with that the lock on it. */
int run_keeper_open(run_keeper_t *keeper)
{
    if (run_folder_make(&keeper->folder) != 0) {
        run_say("cannot make the folder %s: %s (TMPDIR says where)", keeper->folder.path, strerror(errno));
        return -1;
    }
    if (start_standing_by(keeper) == 0) return 0;
    run_say("cannot start a process: %s", strerror(errno));
    run_folder_remove(&keeper->folder);
    return -1;
}

void run_keeper_tell(run_keeper_t *keeper, pid_t pid)
{
    /* smaller than a pipe's unit of atomic writes; a keeper that somebody killed is no reason to fail */
    if (write(keeper->news_fd, &pid, sizeof pid) < 0) return;
}

/* The keeper removes the folder and is waited for, so that a script finds none behind xep_run. */
void run_keeper_close(run_keeper_t *keeper)
{
    close(keeper->news_fd);
    while (waitpid(keeper->pid, NULL, 0) < 0 && errno == EINTR) continue;
    run_folder_remove(&keeper->folder); /* in case it was killed */
}
