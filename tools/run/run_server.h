/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The PMIx server of a job on one machine: every rank is its own client, so a fence is done when the
 * library says that all have come, and all data are here already.
 */
#ifndef RUN_SERVER_H
#define RUN_SERVER_H

#include <stdint.h>

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

#endif
