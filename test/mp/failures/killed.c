/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * For contrib/kills: one rank dies at a drawn moment of a phase; the others say what they are told, end everything, and
 * leave.
 *
 * killed MODE PHASE VICTIM DELAY_US SAYS [mask]
 *   PHASE     create, buffer, between, dispatch, combine, destroy: at its begin the victim's clock is set; parted:
 *             nobody dies (VICTIM is no rank), and rounds are played until something else keeps ranks apart (hosts.sh)
 *   DELAY_US  after so long it dies, wherever it is then
 *   SAYS      a file to whose end every rank writes what it says: a launcher that hangs brings nothing to its output
 *   mask      the others go on without it
 *
 * Every other rank writes "told RANK WHERE STATUS: reason" for the first error, "without RANK VICTIM..." for the ranks
 * that its operations were without, "first RANK ROUND" for the first round that was, "longest RANK WHERE MS" for the
 * call that took longest, "later RANK WHERE MS" for that of the rounds in which nobody has to find out any more who is
 * gone, and "left RANK" when all is destroyed.
 */
#define _GNU_SOURCE /* pause */
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "mp_job.h"
#include "mp_rig.h"

enum { ROUNDS = 40, PHASE_ROUND = 4, DONE_ROUNDS = 5 };

static const char *phase;
static unsigned victim, delay_us;
static const char *says_name;
static FILE *says;
static int is_victim;

static mp_case_t base = {.name = "killed", MP_SHAPE(21, 4, 296, 40), .weights = 1, .slots = 2};

/* ---- dying ---- */

/* The kernel kills: at any instruction, of any thread. */
static void reach(const char *here)
{
    struct sigevent kills = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
    struct itimerspec when = {.it_value = {.tv_sec = delay_us / 1000000, .tv_nsec = delay_us % 1000000 * 1000L + 1}};
    timer_t timer;
    if (!is_victim || strcmp(here, phase) != 0) return;
    if (timer_create(CLOCK_MONOTONIC, &kills, &timer) != 0 || timer_settime(timer, 0, &when, NULL) != 0) {
        perror("killed: timer");
        exit(1);
    }
}

/* Before there is a group, only the launcher knows who this is. */
static unsigned own_rank(void)
{
    const char *names[] = {"PMIX_RANK", "OMPI_COMM_WORLD_RANK"};
    for (int i = 0; i < 2; i++)
        if (getenv(names[i]) != NULL) return (unsigned)strtoul(getenv(names[i]), NULL, 10);
    fprintf(stderr, "killed: no launcher\n");
    exit(2);
}

/* ---- saying ---- */

static int told;

static void tell(const char *where, xep_status_t status)
{
    if (told++ == 0) fprintf(says, "told %u %s %s: %s\n", own_rank(), where, xep_status_name(status), xep_last_error());
}

/** Of some calls. */
typedef struct longest {
    const char *where;
    uint64_t ms;
} longest_t;

static longest_t longest = {.where = "nothing"}, longest_later = {.where = "nothing"};
static int first_round = -1; /* without the victim; < 0: none yet */
static int is_later;         /* this round is behind the one in which the last rank has found out */

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void keep_longest(longest_t *of, const char *where, uint64_t ms)
{
    if (ms > of->ms) *of = (longest_t){.where = where, .ms = ms};
}

/* A call that began then has ended. */
static void note_time(const char *where, uint64_t begin_ms)
{
    uint64_t ms = now_ms() - begin_ms;
    keep_longest(&longest, where, ms);
    if (is_later) keep_longest(&longest_later, where, ms);
}

static void say_times(void)
{
    fprintf(says, "longest %u %s %llu\n", own_rank(), longest.where, (unsigned long long)longest.ms);
    if (is_later)
        fprintf(says, "later %u %s %llu\n", own_rank(), longest_later.where, (unsigned long long)longest_later.ms);
}

static uint32_t without; /* ranks that some operation was without */

static void say_without(void)
{
    fprintf(says, "without %u", own_rank());
    for (uint32_t r = 0; r < mp_nranks(); r++)
        if (without >> r & 1) fprintf(says, " %u", r);
    fprintf(says, "\n");
}

/* ---- what is done ---- */

/* 0: an error, which was told. What an operation without ranks brings is for survivors.sh. */
static int run_round(mp_job_t *job)
{
    xep_dispatch_args_t d = mp_job_dispatch(job);
    xep_handle_t *handle;
    reach("dispatch");
    uint64_t begin = now_ms();
    xep_status_t status = xep_dispatch(job->buffer, &d, &handle, NULL);
    note_time("dispatch", begin);
    if (status != XEP_OK) {
        tell("dispatch", status);
        return 0;
    }
    without |= mp_out_of(mp_recv(handle));
    if (without == 0) mp_job_check_recv(job, handle);
    uint8_t missing[64 * 4];
    xep_combine_args_t c = mp_job_combine(job, handle);
    if (base.on_failure == XEP_ON_FAILURE_MASK) c.missing = missing;
    reach("combine");
    begin = now_ms();
    status = xep_combine(handle, &c, NULL);
    note_time("combine", begin);
    if (status != XEP_OK) tell("combine", status);
    else if (without == 0 && base.on_failure != XEP_ON_FAILURE_MASK) mp_job_check_out(job);
    xep_handle_release(handle);
    return status == XEP_OK;
}

/*
 * Of hosts one may have the rows of the rank that has died, and another not: the first round without it may be one
 * later there. All must end after the same round, as whoever leaves before is missing. Each writes down its first one,
 * and when one has played some more, all have.
 */
static int last_first(void)
{
    char line[1024];
    int most = 0, round;
    FILE *all = fopen(says_name, "r");
    MP_CHECK(all != NULL);
    while (fgets(line, sizeof line, all) != NULL)
        if (sscanf(line, "first %*u %d", &round) == 1 && round > most) most = round;
    fclose(all);
    return most;
}

/* Under mask until some rounds were without the victim; else until an error. */
static void run_rounds(mp_job_t *job)
{
    int last = strcmp(phase, "parted") == 0 ? INT_MAX : ROUNDS;
    for (int round = 0; round < last; round++) {
        is_later = first_round >= 0 && round > first_round + 1; /* another rank's first one may be the next */
        if (round == PHASE_ROUND) {
            reach("between");
            if (is_victim && strcmp(phase, "between") == 0) pause();
            if (strcmp(phase, "destroy") == 0) return;
        }
        if (!run_round(job)) return;
        if (first_round < 0 && without != 0) {
            first_round = round;
            fprintf(says, "first %u %d\n", own_rank(), round);
            last = round + DONE_ROUNDS;
        }
        if (round + 1 == last) last = last_first() + DONE_ROUNDS + 1;
    }
}

static void use_group(xep_group_t *group)
{
    mp_job_t job;
    mp_job_open(&job, &base, 1);
    reach("buffer");
    uint64_t begin = now_ms();
    xep_status_t status = mp_job_try_buffer(&job, group);
    note_time("buffer", begin);
    if (status == XEP_OK) run_rounds(&job);
    else tell("buffer", status);
    reach("destroy");
    if (is_victim && strcmp(phase, "destroy") != 0) pause();
    begin = now_ms();
    mp_job_close(&job);
    keep_longest(&longest, "destroy", now_ms() - begin);
}

int main(int argc, char **argv)
{
    xep_group_t *group;
    says_name = argc < 6 ? "" : argv[5];
    says = argc < 6 ? NULL : fopen(says_name, "a");
    if (says == NULL) {
        fprintf(stderr, "usage: killed MODE PHASE VICTIM DELAY_US SAYS [mask]\n");
        return 2;
    }
    setvbuf(says, NULL, _IOLBF, 0); /* a line is one write, and there also where the process then hangs */
    base.mode = argv[1];
    phase = argv[2];
    victim = (unsigned)strtoul(argv[3], NULL, 10);
    delay_us = (unsigned)strtoul(argv[4], NULL, 10);
    if (argc > 6) base.on_failure = XEP_ON_FAILURE_MASK;
    is_victim = own_rank() == victim;
    reach("create");
    uint64_t begin = now_ms();
    xep_status_t status = mp_try_group(&group);
    note_time("create", begin);
    if (status == XEP_OK) {
        use_group(group);
        say_without();
        begin = now_ms();
        xep_group_destroy(group);
        keep_longest(&longest, "destroy", now_ms() - begin);
    } else tell("create", status);
    if (is_victim) pause();
    say_times();
    fprintf(says, "left %u\n", own_rank());
    return 0;
}
