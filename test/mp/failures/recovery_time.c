/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * For recovery_time.sh: what the death of a rank costs the others in time, where they go on without it.
 *
 * recovery_time MODE killed   rank 3 of 4 kills itself between two operations: the others find that out, and wait for
 *                             no deadline
 * recovery_time MODE stopped  it stops there: they wait for one, once
 *
 * In no operation behind that one does anybody wait for the rank, which the library itself counts. What operations take
 * is printed: a busy machine makes it whatever it likes.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mp_job.h"
#include "mp_rig.h"

enum { VICTIM = 3, RANKS = 4, WARM_UP = 50, COUNT = 200 };

static const mp_case_t base = {.name = "prompt",
                               MP_SHAPE(16, 4, 512, 64),
                               .weights = 1,
                               .slots = 2,
                               .on_failure = XEP_ON_FAILURE_MASK};

static double median(mp_job_t *job)
{
    double times[COUNT];
    for (int i = 0; i < COUNT; i++) times[i] = mp_job_time(job);
    mp_sort(times, COUNT);
    return times[COUNT / 2];
}

/* In how many operations this rank has waited for the one that is gone. */
static uint64_t waits_for_victim(const mp_job_t *job)
{
    uint64_t sum = 0;
    for (int kind = XEP_OP_DISPATCH; kind <= XEP_OP_COMBINE; kind++) {
        uint64_t count[RANKS];
        xep_waits_t waits = XEP_WAITS_INIT;
        waits.count = count;
        MP_OK(xep_buffer_waits(job->buffer, (xep_op_kind_t)kind, &waits));
        sum += count[VICTIM];
    }
    return sum;
}

static void check_after(mp_job_t *job, double before, double first)
{
    const uint64_t waits = waits_for_victim(job);
    MP_CHECK(waits > 0);
    const double second = mp_job_time(job), after = median(job);
    printf("rank %u: %.3f ms before; the first one %.1f, the second %.3f, later ones %.3f\n", mp_rank(), before * 1e3,
           first * 1e3, second * 1e3, after * 1e3);
    if (waits_for_victim(job) != waits)
        mp_fail(__FILE__, __LINE__, "%" PRIu64 " operations still waited for the rank", waits_for_victim(job) - waits);
}

int main(int argc, char **argv)
{
    xep_group_t *group = mp_group();
    mp_case_t c = base;
    mp_job_t job;
    MP_CHECK(argc == 3 && mp_nranks() == RANKS);
    int was_killed = strcmp(argv[2], "killed") == 0;
    pid_t *pid = mp_shared(group, sizeof *pid);
    c.mode = argv[1];
    c.timeout_ms = was_killed ? MP_FAR_MS : MP_VAIN_MS;
    mp_job_begin(&job, &c, 1, group);
    for (int i = 0; i < WARM_UP; i++) mp_job_time(&job);
    const double before = median(&job);
    if (mp_rank() == VICTIM) {
        *pid = getpid();
        raise(was_killed ? SIGKILL : SIGSTOP);
        _exit(1); /* the others end it */
    }
    check_after(&job, before, mp_job_time(&job));
    MP_OK(xep_group_barrier(group));
    if (mp_rank() == 0 && !was_killed) kill(*pid, SIGKILL);
    mp_job_close(&job);
    xep_group_destroy(group);
    printf("survived\n");
    return 0;
}
