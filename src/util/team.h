/* SPDX-License-Identifier: BSD-3-Clause */

/** The threads of a buffer that copy and reduce: the caller is thread 0, the others wait for work. */
#ifndef XEP_UTIL_TEAM_H
#define XEP_UTIL_TEAM_H

#include <xep/plugin.h>

typedef struct xep_team xep_team_t;

/** oversubscribed: this host has more threads in teams than processors, so waiting ones soon sleep. */
xep_status_t xep_team_create(uint32_t threads, int oversubscribed, xep_team_t **team_p);
void xep_team_destroy(xep_team_t *team);

/** Runs fn(arg, 0 .. threads-1, threads); returns when all are done. One caller at a time. */
void xep_team_run(xep_team_t *team, xep_parallel_fn fn, void *arg);

#endif
