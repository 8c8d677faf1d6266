/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * For recovery_time.sh: what the death of a rank costs the others in time, where they go on without it.
 *
 * recovery_time MODE killed   rank 3 of 4 kills itself between two operations: the others find that out long before a
 *                             deadline
 * recovery_time MODE stopped  it stops there: they wait for timeout_ms, and a tenth at most until they have agreed
 *
 * The operation after that one must be as fast as those before: what is compared is a dispatch with its combine. And
 * none waits for the rank any more, which the library itself counts.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mp_job.h"
#include "mp_rig.h"

enum { VICTIM = 3, RANKS = 4, WARM_UP = 50, COUNT = 200, TIMEOUT_MS = 4000 };
#define MORE_S 0.05 /* of one process that has the processor meanwhile */
#define SLOWER 4    /* with processes of others on all cores, which were not there before */

static const mp_case_t base = {.name = "prompt",
                               MP_SHAPE(16, 4, 512, 64),
                               .weights = 1,
                               .slots = 2,
                               .timeout_ms = TIMEOUT_MS,
                               .on_failure = XEP_ON_FAILURE_MASK};

/* The given part of so many operations is faster; sorted. */
static double measure(mp_job_t *job, double part)
{
    double times[COUNT];
    for (int i = 0; i < COUNT; i++) times[i] = mp_job_time(job);
    mp_sort(times, COUNT);
    return times[(int)(part * COUNT)];
}

static void fail_unless(int is_so, const char *what, double is, double most)
{
    if (!is_so) mp_fail(__FILE__, __LINE__, "%s: %.3f ms (at most %.3f)", what, is * 1e3, most * 1e3);
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

/*
 * Ranks come out of the long wait one after the other, as they sleep in it; and one that another process interrupts is
 * no slower for the death. So of three operations one counts, and has milliseconds more than those before: whoever
 * still waits for the rank takes 200 ms at least. Each of them has less than any second deadline would take.
 */
static void check_after(mp_job_t *job, double first, double slow_before, double before, int was_killed)
{
    double soon = TIMEOUT_MS * 0.25 / 1e3, most = was_killed ? soon : TIMEOUT_MS * 1.1 / 1e3, least = 1e9, second = 0;
    uint64_t waits = waits_for_victim(job);
    MP_CHECK(waits > 0);
    fail_unless(first <= most, "the first operation without the rank takes", first, most);
    for (int i = 0; i < 3; i++) {
        double took = mp_job_time(job);
        if (i == 0) second = took;
        fail_unless(took <= soon, "an operation behind it takes", took, soon);
        if (took < least) least = took;
    }
    double after = 1e9;
    for (int i = 0; i < 3; i++) { /* as often on all ranks */
        double took = measure(job, 0.5);
        if (took < after) after = took;
    }
    printf("rank %u: %.3f ms before; the first one %.1f, the second %.3f, later ones %.3f\n", mp_rank(), before * 1e3,
           first * 1e3, second * 1e3, after * 1e3);
    if (waits_for_victim(job) != waits)
        mp_fail(__FILE__, __LINE__, "%" PRIu64 " operations still waited for the rank", waits_for_victim(job) - waits);
    fail_unless(least <= slow_before + MORE_S, "the operations behind it take", least, slow_before + MORE_S);
    fail_unless(after <= SLOWER * before, "later operations take", after, SLOWER * before);
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
    mp_job_begin(&job, &c, 1, group);
    for (int i = 0; i < WARM_UP; i++) mp_job_time(&job);
    double slow_before = measure(&job, 0.95), before = measure(&job, 0.5);
    if (mp_rank() == VICTIM) {
        *pid = getpid();
        raise(was_killed ? SIGKILL : SIGSTOP);
        _exit(1); /* the others end it */
    }
    double first = mp_job_time(&job);
    check_after(&job, first, slow_before, before, was_killed);
    MP_OK(xep_group_barrier(group));
    if (mp_rank() == 0 && !was_killed) kill(*pid, SIGKILL);
    mp_job_close(&job);
    xep_group_destroy(group);
    printf("survived\n");
    return 0;
}
