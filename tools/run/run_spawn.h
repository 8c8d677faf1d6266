/* SPDX-License-Identifier: BSD-3-Clause */

/** Starts a rank, and ends all processes that came of it. */
#ifndef RUN_SPAWN_H
#define RUN_SPAWN_H

#include <signal.h>
#include <stdint.h>
#include <sys/types.h>

#include "run.h"
#include "run_output.h"

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

#endif
