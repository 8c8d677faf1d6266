/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Owns what must not outlive the job: the folder PMIx writes in, and the ranks' process groups. A process of its own
 * stands by to remove both when xep_run itself is killed.
 */
#ifndef RUN_KEEPER_H
#define RUN_KEEPER_H

#include <sys/types.h>

#include "run_folder.h"

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
