/* SPDX-License-Identifier: BSD-3-Clause */

/** What must not outlive a job: its folder and its processes, even when xep_run is killed. */
#define _GNU_SOURCE
#include "xep_run.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DIR_PREFIX "xep_run."

/* a folder younger than this may be one whose owner has not locked it yet */
enum { STALE_SECONDS = 60 };

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info;
    (void)kind;
    (void)where;
    remove(path);
    return 0;
}

/* nobody else can write in it: it is ours and 0700 */
static void remove_tree(const char *dir)
{
    nftw(dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

/* ---- folders of predecessors that were killed together with their keeper ------- */

/* the lock, and not a process id in the name: ids mean nothing in another container that shares the folder */
static void remove_if_stale(const char *path)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return;
    if (fstat(fd, &info) == 0 && info.st_uid == geteuid() && info.st_mtime < time(NULL) - STALE_SECONDS &&
        flock(fd, LOCK_EX | LOCK_NB) == 0)
        remove_tree(path);
    close(fd);
}

static void remove_stale(const char *root)
{
    DIR *dir = opendir(root);
    struct dirent *entry;
    if (dir == NULL) return;
    while ((entry = readdir(dir)) != NULL) {
        char path[sizeof((run_keeper_t *)0)->dir];
        if (strncmp(entry->d_name, DIR_PREFIX, strlen(DIR_PREFIX)) != 0) continue;
        if (snprintf(path, sizeof path, "%s/%s", root, entry->d_name) < (int)sizeof path) remove_if_stale(path);
    }
    closedir(dir);
}

/* ---- the process that stands by ------------------------------------------------ */

/* the groups of the ranks that run, in no order; a fixed array: nothing can be told to a process without memory */
typedef struct groups {
    pid_t pids[4096];
    size_t count;
} groups_t;

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

/* Until xep_run is gone, or has closed its end: then no group is left that was not told to be gone. */
static void stand_by(int news_fd, const char *dir)
{
    groups_t groups = {.count = 0};
    pid_t news;
    ssize_t bytes;
    while ((bytes = read(news_fd, &news, sizeof news)) != 0) {
        if (bytes < 0 && errno != EINTR) break;
        if (bytes == (ssize_t)sizeof news) groups_note(&groups, news);
    }
    for (size_t i = 0; i < groups.count; i++) kill(-groups.pids[i], SIGKILL);
    remove_tree(dir);
}

/* holds nothing open that anybody waits for the end of, and is in nobody's way when a terminal sends signals */
static void detach(void)
{
    int null = open("/dev/null", O_RDWR);
    setsid();
    prctl(PR_SET_NAME, "xep_run keeper");
    for (int fd = 0; fd < 3 && null >= 0; fd++) dup2(null, fd);
    if (null > 2) close(null);
}

static int start_standing_by(run_keeper_t *keeper)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return -1;
    keeper->pid = fork();
    if (keeper->pid == 0) {
        close(ends[1]);
        detach();
        stand_by(ends[0], keeper->dir);
        _exit(0);
    }
    close(ends[0]);
    keeper->news_fd = ends[1];
    if (keeper->pid > 0) return 0;
    close(ends[1]);
    return -1;
}

/* ---- --------------------------------------------------------------------------- */

static int make_dir(run_keeper_t *keeper)
{
    const char *root = getenv("TMPDIR");
    if (root == NULL || root[0] == '\0') root = "/tmp";
    remove_stale(root);
    if (snprintf(keeper->dir, sizeof keeper->dir, "%s/" DIR_PREFIX "XXXXXX", root) >= (int)sizeof keeper->dir) {
        errno = ENAMETOOLONG;
        return -1;
    }
    if (mkdtemp(keeper->dir) == NULL) return -1;
    keeper->lock_fd = open(keeper->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (keeper->lock_fd >= 0 && flock(keeper->lock_fd, LOCK_EX | LOCK_NB) == 0) return 0;
    remove_tree(keeper->dir);
    return -1;
}

int run_keeper_open(run_keeper_t *keeper)
{
    if (make_dir(keeper) != 0) {
        run_say("cannot make the folder %s: %s", keeper->dir, strerror(errno));
        return -1;
    }
    if (start_standing_by(keeper) == 0) return 0;
    run_say("cannot start a process: %s", strerror(errno));
    remove_tree(keeper->dir);
    return -1;
}

void run_keeper_tell(run_keeper_t *keeper, pid_t pid)
{
    /* smaller than a pipe's unit of atomic writes; a keeper that somebody killed is no reason to fail */
    if (write(keeper->news_fd, &pid, sizeof pid) < 0) return;
}

void run_keeper_close(run_keeper_t *keeper)
{
    close(keeper->news_fd);
    while (waitpid(keeper->pid, NULL, 0) < 0 && errno == EINTR) continue;
    remove_tree(keeper->dir); /* in case it was killed */
    close(keeper->lock_fd);
}
