/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * For survivors.sh: ranks die or stop while operations run, and the others go on. All operations are compared with what
 * the oracle makes of the same routing without the ranks that the library says are out; and all survivors must say the
 * same of each operation, which they leave in memory of this test.
 *
 * survivors MODE SCENARIO SEED
 *   at-once   ranks 1, 3 and 5 kill themselves before the same dispatch
 *   in-turns  rank 1 before a dispatch, rank 3 before a combine, rank 5 while it is in the library
 *   anywhere  two ranks are killed by a timer, at any instruction
 *   stopped   rank 3 stops in mid-operation, is left out, and goes on later: it is told, and spoils nothing
 *   reading   rank 3 stops when all others need of it is that it reads their outputs: they wait for an input alone
 *   taking    the same, and what they send it is more than the network takes: they wait for the wire alone. It goes on
 *             at the end, and is told by nobody: what is on its way stays there
 *   asked     rank 0 masks rank 3, which is well
 *   stale     rank 3 stops at any instruction, and goes on when the others have rows in all slots: these stay
 *   paused    rank 3 stops at any instruction, and goes on after the deadline of the others
 *
 * A round is two dispatches in flight at once, in odd rounds one after the other by args.after, and their combines. In
 * every third round the first of them uses the routing of a handle that all ranks have made, and in every third that
 * handle is combined again. The seed chooses what the arrays are like.
 */
#define _GNU_SOURCE /* kill */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mp_job.h"
#include "mp_rig.h"
#include "survivors_log.h"

enum { FIRST = 10, SECOND = 25, THIRD = 40, SPREAD_US = 300 * 1000, STALE_US = 60 * 1000 };

static const mp_case_t base = {.name = "masks",
                               MP_SHAPE(21, 4, 296, 40),
                               .ragged = 0,
                               .mask = 100,
                               .weights = 1,
                               .payloads = 2,
                               .biases = 1,
                               .slots = 3,
                               .timeout_ms = MP_VAIN_MS,
                               .on_failure = XEP_ON_FAILURE_MASK};

static int is(const char *scenario, const char *name)
{
    return strcmp(scenario, name) == 0;
}

/* ---- a round ---- */

/* A rank that is out has no tokens, as far as the others can tell. */
static void check_dispatch(mp_job_t *job, const xep_handle_t *handle, uint32_t operation)
{
    const uint32_t out = mp_out_of(mp_recv(handle));
    mp_job_tokens_without(job, out);
    mp_job_check_recv(job, handle);
    mp_job_tokens_without(job, 0);
    said->dispatch[operation][mp_rank()] = out + 1;
}

/* A selection is missing if and only if its expert is on a rank that is out. */
static void check_combine(mp_job_t *job, const uint8_t *missing, uint32_t operation)
{
    const uint32_t out = mp_job_sums_without(job, missing);
    mp_job_check_out(job);
    job->shape.without = 0;
    said->combine[operation][mp_rank()] = out + 1;
}

typedef void (*moment_fn)(const char *scenario, uint32_t round, int before_combine);

static xep_handle_t *kept; /* of a dispatch of all ranks */

static xep_status_t combine_one(mp_job_t *job, xep_handle_t *handle, uint32_t operation)
{
    uint8_t missing[40 * 4];
    xep_combine_args_t c = mp_job_combine(job, handle);
    memset(missing, MP_POISON, sizeof missing);
    c.missing = missing;
    xep_status_t status = xep_combine(handle, &c, NULL);
    if (status == XEP_OK) check_combine(job, missing, operation);
    return status;
}

/*
 * Rank 3 offers its outputs and stops; it has not read those of the others, which come later. They have all they need
 * of it until they want to write into the input again.
 */
static xep_status_t combine_unread(mp_job_t *job, xep_handle_t *handle, uint32_t operation)
{
    size_t stride;
    if (mp_rank() == 3) {
        xep_request_t *req = NULL;
        xep_combine_args_t c = mp_job_combine(job, handle);
        xep_status_t status = xep_combine(handle, &c, &req);
        if (status != XEP_OK) return status;
        raise(SIGSTOP);
        status = xep_request_wait(req);
        xep_request_free(req);
        return status;
    }
    mp_sleep_us(300 * 1000);
    xep_status_t status = combine_one(job, handle, operation);
    if (status == XEP_OK) MP_CHECK(mp_input(handle, &stride) != NULL);
    return status;
}

/* What a check expects follows from the arguments that were made last. */
static xep_dispatch_args_t arguments(mp_job_t *job, uint32_t round, uint32_t which)
{
    return which == 0 && round % 3 == 1 ? mp_job_cached(job, kept) : mp_job_dispatch(job);
}

/* Ends both, whatever becomes of the first. */
static xep_status_t dispatch_two(mp_job_t *job, uint32_t round, xep_handle_t *handles[2])
{
    xep_request_t *requests[2] = {NULL, NULL};
    xep_status_t status = XEP_OK;
    for (uint32_t i = 0; i < 2 && status == XEP_OK; i++) {
        xep_dispatch_args_t args = arguments(job, round, i);
        args.after = round % 2 == 1 ? requests[0] : NULL;
        status = xep_dispatch(job->buffer, &args, &handles[i], &requests[i]);
    }
    for (uint32_t i = 0; i < 2 && requests[i] != NULL; i++) {
        xep_status_t ended = xep_request_wait(requests[i]);
        if (status == XEP_OK) status = ended;
        xep_request_free(requests[i]);
    }
    for (uint32_t i = 0; i < 2 && status == XEP_OK; i++) {
        arguments(job, round, i);
        check_dispatch(job, handles[i], round * SAID_OPERATIONS + i);
    }
    return status;
}

static xep_status_t play_round(mp_job_t *job, uint32_t round, const char *scenario, moment_fn moment)
{
    xep_handle_t *handles[2] = {NULL, NULL};
    mp_job_payload(job, 1000 + round);
    moment(scenario, round, 0);
    xep_status_t status = dispatch_two(job, round, handles);
    if (status != XEP_OK) return status;
    moment(scenario, round, 1);
    for (uint32_t i = 0; i < 2 && status == XEP_OK; i++) {
        int unread = i == 0 && round == FIRST && (is(scenario, "reading") || is(scenario, "taking"));
        arguments(job, round, i);
        status = (unread ? combine_unread : combine_one)(job, handles[i], round * SAID_OPERATIONS + i);
        xep_handle_release(handles[i]);
    }
    if (status != XEP_OK || round % 3 != 2) return status;
    mp_job_dispatch(job);
    return combine_one(job, kept, round * SAID_OPERATIONS + 2);
}

/* ---- who dies when ---- */

static void strike(const char *scenario, uint32_t round, int before_combine)
{
    uint32_t r = mp_rank();
    if (is(scenario, "at-once") && round == FIRST && !before_combine && (r == 1 || r == 3 || r == 5)) raise(SIGKILL);
    if (is(scenario, "in-turns") && ((round == FIRST && r == 1 && !before_combine) ||
                                     (round == SECOND && r == 3 && before_combine) || (round == THIRD && r == 5)))
        raise(SIGKILL);
    if (is(scenario, "stopped") && round == FIRST && r == 3 && before_combine) raise(SIGSTOP);
    int stops = is(scenario, "stopped") || is(scenario, "reading");
    if (stops && round == SECOND && r == 0 && !before_combine) kill(said->pid[3], SIGCONT);
    if (stops && round == THIRD && !before_combine && r == 0) mp_await(&said->done[3], 1);
}

/* The stop, and what ends it after so many seconds, 0: never, come from a process that does nothing else. */
static void pause_later(uint64_t seed, uint32_t spread_us, unsigned seconds)
{
    useconds_t us = (useconds_t)(oracle_hash_row(&seed, sizeof seed, 6) % spread_us) + 1;
    pid_t self = getpid(), child = fork();
    MP_CHECK(child >= 0);
    if (child > 0) return;
    usleep(us);
    kill(self, SIGSTOP);
    sleep(seconds);
    if (seconds > 0) kill(self, SIGCONT);
    _exit(0);
}

/* ---- the end ---- */

static void check_masks(xep_group_t *group, uint32_t expected)
{
    uint32_t set = mp_ranks_out(group);
    if (set != expected) mp_fail(__FILE__, __LINE__, "ranks out: %#x, expected %#x", set, expected);
}

/* The rank that was left out: every call says so, and its end waits for nobody. */
static void leave(mp_job_t *job, xep_group_t *group, xep_status_t status)
{
    kept = NULL;
    MP_CHECK(status == XEP_ERR_PEER);
    MP_REASON("this rank is out");
    xep_dispatch_args_t d = mp_job_dispatch(job);
    MP_REFUSES(job, &d, XEP_ERR_PEER, "this rank is out");
    MP_SAYS(XEP_ERR_PEER, "this rank is out", xep_group_barrier(group));
    xep_group_abort(group); /* which ends nothing for the others */
    mp_job_close(job);
    atomic_store(&said->done[mp_rank()], 1);
    xep_group_destroy(group);
    printf("left\n");
    exit(0);
}

/* Who is expected to be out at the end. */
static uint32_t victims(const char *scenario, uint64_t seed)
{
    uint32_t n = mp_nranks(), first = (uint32_t)(seed % n), second = (uint32_t)((first + 1 + seed / n % (n - 1)) % n);
    if (is(scenario, "at-once") || is(scenario, "in-turns")) return 0x2a;
    if (is(scenario, "anywhere")) return 1u << first | 1u << second;
    return is(scenario, "none") ? 0 : 8;
}

/* Where all that happens happens early, nothing is new in later rounds. */
static uint32_t rounds_of(const char *scenario)
{
    static const char *const early[] = {"none", "at-once", "asked", "taking"};
    for (size_t i = 0; i < sizeof early / sizeof *early; i++)
        if (is(scenario, early[i])) return SECOND;
    return SAID_ROUNDS;
}

/* Arrays of all kinds, over the seeds. */
static mp_case_t make_case(const char *mode, const char *scenario, uint64_t seed)
{
    mp_case_t c = base;
    c.mode = mode;
    if (is(scenario, "taking")) c.hidden = 8192;
    c.fixed_capacity = seed & 1;
    c.copy_in = seed >> 1 & 1;
    c.nscales = seed >> 2 & 1 ? 3 : 0;
    c.strided = seed >> 3 & 1;
    c.idx_dtype = seed >> 4 & 1 ? XEP_INT32 : XEP_INT64;
    c.owners = seed >> 5 & 1 ? "cyclic" : NULL;
    return c;
}

/* The slots have rows of dispatches without rank 3, which then goes on with what it was at. */
static void wake_stale(mp_job_t *job, xep_group_t *group)
{
    xep_handle_t *handles[2] = {NULL, NULL};
    xep_status_t status = xep_group_barrier(group);
    if (status == XEP_OK) status = dispatch_two(job, 0, handles);
    if (status == XEP_OK) status = xep_group_barrier(group);
    if (status != XEP_OK && mp_rank() == 3) leave(job, group, status);
    MP_OK(status);
    if (mp_rank() == 0) kill(said->pid[3], SIGCONT);
    mp_await(&said->done[3], 1);
    for (uint32_t i = 0; i < 2; i++) {
        mp_job_dispatch(job);
        check_dispatch(job, handles[i], i);
        xep_handle_release(handles[i]);
    }
}

/* The group of those that are left is dense, and again one in which ranks may be left out. */
static xep_group_t *go_on_smaller(xep_group_t *group, const mp_case_t *c, uint32_t dead)
{
    const uint32_t left = mp_nranks() - (uint32_t)__builtin_popcount(dead);
    const xep_shrink_args_t args = XEP_SHRINK_ARGS_INIT;
    xep_group_t *next;
    mp_job_t job;
    MP_OK(xep_group_shrink(group, &args, &next));
    xep_group_destroy(group);
    mp_go_on(next);
    MP_CHECK(mp_nranks() == left);
    check_masks(next, 0);
    mp_job_open(&job, c, 3);
    job.may_be_out = 1;
    mp_job_buffer(&job, next);
    mp_job_round(&job);
    mp_job_close(&job);
    return next;
}

int main(int argc, char **argv)
{
    const char *scenario = argc > 2 ? argv[2] : "";
    uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 0) : 0;
    xep_group_t *group = mp_group();
    uint32_t dead = victims(scenario, seed);
    mp_case_t c = make_case(argc > 1 ? argv[1] : "", scenario, seed);
    mp_job_t job;
    MP_CHECK(mp_nranks() <= SAID_RANKS);
    said_open(group);
    mp_job_open(&job, &c, 1 + seed);
    job.may_be_out = 1;
    mp_job_buffer(&job, group);
    kept = mp_job_send(&job);
    if (is(scenario, "paused") && mp_rank() == 3) pause_later(seed, SPREAD_US, MP_VAIN_MS / 1000 + 2);
    if (is(scenario, "stale") && mp_rank() == 3) pause_later(seed, STALE_US, 0);
    if (is(scenario, "anywhere") && (dead >> mp_rank() & 1)) mp_die_within(seed * SAID_RANKS + mp_rank(), SPREAD_US);
    for (uint32_t round = 0; round < rounds_of(scenario); round++) {
        if (is(scenario, "asked") && round == FIRST && mp_rank() == 0) MP_OK(xep_group_mask_set(group, 3));
        xep_status_t status = play_round(&job, round, scenario, strike);
        if (status != XEP_OK && (dead >> mp_rank() & 1)) leave(&job, group, status);
        MP_OK(status);
    }
    if (is(scenario, "stale")) wake_stale(&job, group);
    while (is(scenario, "anywhere") && (dead >> mp_rank() & 1)) pause();
    if (is(scenario, "taking") && mp_rank() == 0) {
        kill(said->pid[3], SIGCONT);
        mp_await(&said->done[3], 1);
    }
    MP_OK(xep_group_barrier(group));
    if (is(scenario, "paused")) dead = mp_ranks_out(group); /* it may have come back in time */
    check_masks(group, dead);
    said_compare(group, dead);
    xep_handle_release(kept);
    mp_job_close(&job);
    if (is(scenario, "at-once")) group = go_on_smaller(group, &c, dead);
    xep_group_destroy(group);
    printf("survived\n");
    return 0;
}
