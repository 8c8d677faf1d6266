/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * For survivors.sh: ranks die or stop while operations run, and the others go on. All operations are compared with what
 * the oracle makes of the same routing without the ranks that the library says are out; and all survivors must say the
 * same of each operation, which they leave in memory of this test.
 *
 * survivors SCENARIO SEED
 *   at-once   ranks 1, 3 and 5 kill themselves before the same dispatch
 *   in-turns  rank 1 before a dispatch, rank 3 before a combine, rank 5 while it is in the library
 *   anywhere  two ranks are killed by a timer, at any instruction
 *   stopped   rank 3 stops in mid-operation, is left out, and goes on later: it is told, and spoils nothing
 *   asked     rank 0 masks rank 3, which is well
 */
#define _GNU_SOURCE /* mkstemp, ftruncate */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include "mp_job.h"
#include "mp_rig.h"

enum { RANKS = 8, ROUNDS = 60, FIRST = 10, SECOND = 25, THIRD = 40, SPREAD_US = 300 * 1000 };

static const mp_case_t base = {.name = "masks",
                               .mode = "ll",
                               .experts = 21,
                               .topk = 4,
                               .hidden = 296,
                               .tokens = 40,
                               .ragged = 0,
                               .mask = 100,
                               .weights = 1,
                               .biases = 1,
                               .slots = 2,
                               .timeout_ms = 2000,
                               .on_failure = XEP_ON_FAILURE_MASK};

/** What ranks said of each operation, plus 1; 0: nothing. */
typedef struct log {
    atomic_int pid[RANKS], done[RANKS];
    uint32_t dispatch[ROUNDS][RANKS], combine[ROUNDS][RANKS];
} log_t;

static log_t *said;

static log_t *open_log(xep_group_t *group)
{
    char mine[64] = "/dev/shm/xep_masks.XXXXXX", paths[RANKS][64];
    int file = mp_rank() == 0 ? mkstemp(mine) : -1;
    if (mp_rank() == 0) MP_CHECK(file >= 0 && ftruncate(file, sizeof(log_t)) == 0);
    MP_OK(xep_group_allgather(group, mine, paths, sizeof mine));
    if (mp_rank() != 0) file = open(paths[0], O_RDWR);
    void *memory = mmap(NULL, sizeof(log_t), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    MP_CHECK(file >= 0 && memory != MAP_FAILED);
    close(file);
    MP_OK(xep_group_barrier(group));
    if (mp_rank() == 0) unlink(mine);
    return memory;
}

/* ---- the truth: selections of ranks that are out count for nothing ---- */

static uint32_t out_now;

static void route(const oracle_shape_t *shape, uint32_t rank, uint64_t token, int32_t *idx, float *weights)
{
    oracle_route(shape->routing, rank, token, idx, weights);
    for (uint32_t k = 0; k < shape->routing->params.topk; k++)
        if (idx[k] >= 0 && (out_now >> oracle_owner(shape->routing, (uint32_t)idx[k]) & 1)) idx[k] = -1;
}

static oracle_shape_t plain(const oracle_shape_t *shape)
{
    oracle_shape_t copy = *shape;
    copy.source = NULL;
    return copy;
}

static void row(const oracle_shape_t *shape, uint32_t rank, uint64_t token, void *to)
{
    oracle_shape_t copy = plain(shape);
    oracle_fill_row(&copy, rank, token, to);
}

static void scales(const oracle_shape_t *shape, uint32_t rank, uint64_t token, uint32_t *to)
{
    oracle_shape_t copy = plain(shape);
    oracle_fill_scales(&copy, rank, token, to);
}

static void bias(const oracle_shape_t *shape, uint32_t which, uint32_t rank, uint64_t token, void *to)
{
    oracle_shape_t copy = plain(shape);
    oracle_fill_bias(&copy, which, rank, token, to);
}

static void output(const oracle_shape_t *shape, uint32_t maker, uint32_t rank, uint64_t token, void *to)
{
    oracle_shape_t copy = plain(shape);
    oracle_fill_output(&copy, maker, rank, token, to);
}

static void returned(const oracle_shape_t *shape, uint32_t maker, uint32_t rank, uint64_t token, float *to)
{
    oracle_shape_t copy = plain(shape);
    oracle_fill_returned(&copy, maker, rank, token, to);
}

static const oracle_source_t masked =
    {.route = route, .row = row, .scales = scales, .bias = bias, .output = output, .returned = returned};

/* ---- a round ---- */

static uint32_t out_of(const xep_recv_t *recv)
{
    uint32_t set = 0;
    for (uint32_t r = 0; recv->out != NULL && r < mp_nranks(); r++) set |= (uint32_t)recv->out[r] << r;
    return set;
}

/* A rank that is out has no tokens, as far as the others can tell. */
static void check_dispatch(mp_job_t *job, const xep_handle_t *handle, uint32_t round)
{
    oracle_routing_t *routing = job->routing, without = *routing;
    uint64_t tokens[RANKS];
    uint32_t out = out_of(xep_handle_recv(handle));
    for (uint32_t r = 0; r < mp_nranks(); r++) tokens[r] = out >> r & 1 ? 0 : routing->tokens_of[r];
    without.tokens_of = tokens;
    without.params.tokens_of = tokens;
    job->shape.routing = &without;
    mp_job_check_recv(job, handle);
    job->shape.routing = routing;
    said->dispatch[round][mp_rank()] = out + 1;
}

/* A selection is missing if and only if its expert is on a rank that is out. Which ranks are out shows in no other
 * way, so tokens must have selected experts of all. */
static void check_combine(mp_job_t *job, const uint8_t *missing, uint32_t round)
{
    uint32_t topk = job->c->topk, out = 0, in = 0;
    int32_t idx[16];
    float weights[16];
    for (uint64_t t = 0; t < job->tokens; t++) {
        oracle_route(job->routing, mp_rank(), t, idx, weights);
        for (uint32_t k = 0; k < topk; k++) {
            uint8_t miss = missing[t * topk + k];
            MP_CHECK(miss <= 1 && !(idx[k] < 0 && miss));
            if (idx[k] >= 0) *(miss ? &out : &in) |= 1u << oracle_owner(job->routing, (uint32_t)idx[k]);
        }
    }
    MP_CHECK((out & in) == 0 && (out | in) == (1u << mp_nranks()) - 1);
    out_now = out;
    job->shape.source = &masked;
    mp_job_check_out(job);
    job->shape.source = NULL;
    said->combine[round][mp_rank()] = out + 1;
}

typedef void (*moment_fn)(const char *scenario, uint32_t round, int before_combine);

static xep_status_t play_round(mp_job_t *job, uint32_t round, const char *scenario, moment_fn moment)
{
    uint8_t missing[40 * 4];
    xep_handle_t *handle = NULL;
    mp_job_payload(job, 1000 + round);
    moment(scenario, round, 0);
    xep_dispatch_args_t d = mp_job_dispatch(job);
    xep_status_t status = xep_dispatch(job->buffer, &d, &handle, NULL);
    if (status != XEP_OK) return status;
    check_dispatch(job, handle, round);
    xep_combine_args_t c = mp_job_combine(job, handle);
    memset(missing, MP_POISON, sizeof missing);
    c.missing = missing;
    moment(scenario, round, 1);
    status = xep_combine(handle, &c, NULL);
    if (status == XEP_OK) check_combine(job, missing, round);
    xep_handle_release(handle);
    return status;
}

/* ---- who dies when ---- */

static int is(const char *scenario, const char *name)
{
    return strcmp(scenario, name) == 0;
}

static void strike(const char *scenario, uint32_t round, int before_combine)
{
    uint32_t r = mp_rank();
    if (is(scenario, "at-once") && round == FIRST && !before_combine && (r == 1 || r == 3 || r == 5)) raise(SIGKILL);
    if (is(scenario, "in-turns") && ((round == FIRST && r == 1 && !before_combine) ||
                                     (round == SECOND && r == 3 && before_combine) || (round == THIRD && r == 5)))
        raise(SIGKILL);
    if (is(scenario, "stopped") && round == FIRST && r == 3 && before_combine) raise(SIGSTOP);
    if (is(scenario, "stopped") && round == SECOND && r == 0 && !before_combine) kill(said->pid[3], SIGCONT);
    if (is(scenario, "stopped") && round == THIRD && !before_combine && r == 0) mp_await(&said->done[3], 1);
}

static void set_timer(uint64_t seed)
{
    uint32_t us = (uint32_t)(oracle_hash_row(&seed, sizeof seed, 5) % SPREAD_US) + 1;
    struct itimerval timer = {.it_value = {.tv_usec = us}};
    signal(SIGALRM, SIG_DFL); /* which ends the process */
    MP_CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

/* ---- the end ---- */

static void check_masks(xep_group_t *group, uint32_t expected)
{
    xep_mask_t masks[RANKS];
    uint32_t count, set = 0;
    MP_OK(xep_group_mask_query(group, masks, RANKS, &count));
    for (uint32_t i = 0; i < count; i++) {
        MP_CHECK(masks[i].since_ns != 0 && masks[i].reason >= XEP_OUT_DIED && masks[i].reason <= XEP_OUT_ASKED);
        set |= 1u << masks[i].rank;
    }
    if (set != expected) mp_fail(__FILE__, __LINE__, "ranks out: %#x, expected %#x", set, expected);
    if (set != 0) MP_FAILS(XEP_ERR_UNSUPPORTED, xep_group_mask_clear(group));
}

/* Members only grow fewer, and all survivors have said so of the same operations. */
static void compare_logs(uint32_t out)
{
    for (uint32_t round = 0; round < ROUNDS; round++)
        for (uint32_t r = 0; r < mp_nranks(); r++) {
            if (out >> r & 1) continue;
            if (said->dispatch[round][r] != said->dispatch[round][mp_rank()] ||
                said->combine[round][r] != said->combine[round][mp_rank()])
                mp_fail(__FILE__, __LINE__, "round %u: rank %u was without %#x, %#x, this rank without %#x, %#x", round,
                        r, said->dispatch[round][r] - 1, said->combine[round][r] - 1,
                        said->dispatch[round][mp_rank()] - 1, said->combine[round][mp_rank()] - 1);
        }
}

/* The rank that was left out: every call says so, and its end waits for nobody. */
static void leave(mp_job_t *job, xep_group_t *group, xep_status_t status)
{
    xep_handle_t *handle;
    double begin = mp_now();
    MP_CHECK(status == XEP_ERR_PEER);
    MP_REASON("this rank is out");
    xep_dispatch_args_t d = mp_job_dispatch(job);
    MP_FAILS(XEP_ERR_PEER, xep_dispatch(job->buffer, &d, &handle, NULL));
    MP_REASON("this rank is out");
    mp_job_close(job);
    atomic_store(&said->done[mp_rank()], 1);
    xep_group_destroy(group);
    MP_CHECK(mp_now() - begin < 30);
    printf("left\n");
    exit(0);
}

int main(int argc, char **argv)
{
    const char *scenario = argc > 1 ? argv[1] : "";
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 0;
    xep_group_t *group = mp_group();
    uint32_t n = mp_nranks(), first = (uint32_t)(seed % n), second = (uint32_t)((first + 1 + seed / n % (n - 1)) % n);
    uint32_t dead = is(scenario, "at-once") || is(scenario, "in-turns") ? 0x2a
                    : is(scenario, "stopped") || is(scenario, "asked")  ? 8
                    : is(scenario, "anywhere")                          ? 1u << first | 1u << second
                                                                        : 0;
    mp_job_t job;
    MP_CHECK(n <= RANKS);
    said = open_log(group);
    said->pid[mp_rank()] = getpid();
    mp_job_open(&job, &base, 1 + seed);
    mp_job_buffer(&job, group);
    if (is(scenario, "anywhere") && (dead >> mp_rank() & 1)) set_timer(seed * RANKS + mp_rank());
    for (uint32_t round = 0; round < ROUNDS; round++) {
        if (is(scenario, "asked") && round == FIRST && mp_rank() == 0) MP_OK(xep_group_mask_set(group, 3));
        xep_status_t status = play_round(&job, round, scenario, strike);
        if (status != XEP_OK && (dead >> mp_rank() & 1)) leave(&job, group, status);
        MP_OK(status);
    }
    while (is(scenario, "anywhere") && (dead >> mp_rank() & 1)) pause();
    MP_OK(xep_group_barrier(group));
    check_masks(group, dead);
    compare_logs(dead);
    mp_job_close(&job);
    xep_group_destroy(group);
    printf("survived\n");
    return 0;
}
