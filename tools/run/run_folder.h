/* SPDX-License-Identifier: BSD-3-Clause */

/** The folder of a job, which PMIx writes in: made, locked, marked as ours, and removed with all that is in it. */
#ifndef RUN_FOLDER_H
#define RUN_FOLDER_H

typedef struct run_folder {
    char path[4096];
    int fd; /* locked as long as the folder is in use; a fork holds the lock, too */
} run_folder_t;

/** A new one in TMPDIR, where those of killed predecessors are removed first. 0, or -1 and errno. */
int run_folder_make(run_folder_t *folder);

/** Removes it, if it is there, and closes it. */
void run_folder_remove(run_folder_t *folder);

#endif
