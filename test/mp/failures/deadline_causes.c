/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 4, limit: 240, again: 2 */

/*
 * After a deadline one rank says what the reasons of all ranks come to: whom they wait for, what that one does instead,
 * and who waits. The last rank stays away from a dispatch, in no call and in another call, and from a barrier.
 *
 * A machine under load may keep another rank away, too, for longer than a deadline: so what is not said is tried again
 * with three times as much.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mp_job.h"
#include "mp_rig.h"

enum { ATTEMPTS = 4, FIRST_MS = 1000 };

static mp_case_t base = {.name = "together", MP_SHAPE(12, 4, 300, 30), .weights = 1, .slots = 2};

static atomic_int *steps; /* all ranks are through so many */
static atomic_int *right; /* attempts in which rank 0 said what it should */
static int nsteps;
static char said[1024]; /* by this rank */

static void listen(void *arg, xep_log_level_t level, const char *message)
{
    (void)arg;
    if (level == XEP_LOG_ERROR && strncmp(message, "all ranks together: ", 20) == 0)
        snprintf(said, sizeof said, "%s", message + 20);
}

/* A meeting that is not xep's: a rank that is in no call of xep comes to it, too. */
static void meet(void)
{
    ++*steps;
    mp_await(steps, ++nsteps * (int)mp_nranks());
}

/* Rank 0 has to have said this; all learn whether it has. */
static int is_right(const char *before, const char *after, int attempt)
{
    int is = strncmp(said, before, strlen(before)) == 0 && strstr(said, after) != NULL;
    if (mp_rank() == 0 && is) ++*right;
    if (mp_rank() == 0 && !is && attempt == ATTEMPTS - 1)
        mp_fail(__FILE__, __LINE__, "said \"%s\", not \"%s...%s\"", said, before, after);
    meet();
    int all = atomic_load(right);
    meet();
    return all;
}

static void dispatch_in_vain(mp_job_t *job, int32_t timeout_ms)
{
    xep_dispatch_args_t d = mp_job_dispatch(job);
    xep_handle_t *handle;
    d.timeout_ms = timeout_ms;
    MP_FAILS(XEP_ERR_TIMEOUT, xep_dispatch(job->buffer, &d, &handle, NULL));
}

typedef enum { COMPUTES, WAITS_ELSEWHERE } absence_t;

/* The other call is a dispatch of another buffer, which nobody else makes. */
static int stays_away(mp_job_t *job, mp_job_t *other, absence_t how, uint64_t epoch, int attempt)
{
    int32_t timeout_ms = FIRST_MS;
    char before[128];
    for (int i = 0; i < attempt; i++) timeout_ms *= 3;
    snprintf(before, sizeof before, "rank %u never began dispatch %llu of mode %s and %s", mp_nranks() - 1,
             (unsigned long long)epoch, base.mode == NULL ? "normal" : base.mode,
             how == COMPUTES ? "does not answer; ranks 0-2 wait for its "
                             : "waits in dispatch 1 of mode normal of another buffer; ranks 0-2 wait for its ");
    said[0] = '\0';
    meet();
    if (!mp_is_last()) dispatch_in_vain(job, timeout_ms);
    else if (how == WAITS_ELSEWHERE) dispatch_in_vain(other, 2 * timeout_ms);
    return is_right(before, "", attempt);
}

static void in_operations(xep_group_t *group, absence_t how)
{
    static const mp_case_t else_where = {.name = "elsewhere", MP_SHAPE(12, 4, 300, 30), .slots = 2};
    mp_job_t job, other;
    uint64_t epoch = 1;
    mp_job_begin(&job, &base, 1, group);
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        mp_job_begin(&other, &else_where, 1, group);
        atomic_store(right, 0);
        int done = stays_away(&job, &other, how, epoch, attempt);
        MP_OK(xep_buffer_reset(job.buffer));
        epoch += 2; /* one of the dispatch, one of the reset */
        mp_job_close(&other);
        if (done) break;
    }
    mp_job_round(&job);
    mp_job_close(&job);
}

/* A barrier has its group's deadline. */
static void in_barrier(xep_group_t *group)
{
    int32_t timeout_ms = FIRST_MS;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++, timeout_ms *= 3) {
        xep_group_t *second = mp_second_group(group, timeout_ms);
        atomic_store(right, 0);
        said[0] = '\0';
        meet();
        if (!mp_is_last()) MP_FAILS(XEP_ERR_TIMEOUT, xep_group_barrier(second));
        int done = is_right("rank 3 never came to barrier ", " and does not answer; ranks 0-2 wait for it", attempt);
        xep_group_abort(second);
        xep_group_destroy(second);
        if (done) break;
    }
}

int main(void)
{
    xep_group_t *group = mp_group();
    steps = mp_counter(group);
    right = mp_counter(group);
    xep_log_set(listen, NULL);
    in_operations(group, COMPUTES);
    in_operations(group, WAITS_ELSEWHERE);
    base.mode = "ll";
    in_operations(group, COMPUTES);
    in_barrier(group);
    return mp_end(group);
}
