/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Owns what must not outlive the job: the folder PMIx writes in, and the ranks' process groups. A process of its own
 * stands by to remove both when xep_run itself is killed.
 */
#ifndef RUN_KEEPER_H
#define RUN_KEEPER_H

#include <sys/types.h>

/* ---- run_keeper_folder.c ---- */

/* The folder of a job, which PMIx writes in: made, locked, marked as ours, and removed with all that is in it. */

typedef struct run_folder {
    char path[4096];
    int fd; /* locked as long as the folder is in use; a fork holds the lock, too */
} run_folder_t;

/** A new one in TMPDIR, where those of killed predecessors are removed first. 0, or -1 and errno. */
int run_folder_make(run_folder_t *folder);

/** Removes it, if it is there, and closes it. */
void run_folder_remove(run_folder_t *folder);

/* ---- run_keeper.c ---- */

typedef struct run_keeper {
    run_folder_t folder;
    int news_fd; /* to the process that stands by */
    pid_t pid;   /* its id */
} run_keeper_t;

/** 0, or -1 after a message. */
int run_keeper_open(run_keeper_t *keeper);

/** A process group is there (pid > 0) or gone (-pid). */
void run_keeper_tell(run_keeper_t *keeper, pid_t pid);

/** Removes the folder. */
void run_keeper_close(run_keeper_t *keeper);

#endif
