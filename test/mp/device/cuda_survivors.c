/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * For cuda_survivors.sh and contrib/check-cuda.sh: ranks die or stop while operations run on rows in device memory, and
 * the others go on. Each operation is compared with what the oracle makes of the same routing without the ranks that
 * the library says are out of it.
 *
 * cuda_survivors MODE SCENARIO SEED TIMEOUT_MS [ADDRESS]
 *   between   the last rank is killed before a dispatch, the one before it behind another one
 *   anywhere  all ranks but two are killed by timers, at any instruction
 *   graph     the last rank is killed between two replays of a graph, which goes on; and so does the next capture
 *   stopped   the last rank stops, is left out, and goes on later: it is told
 *   asked     rank 0 masks the last rank, which is told
 *   shrink    as between; then the others make a group without the dead, and a buffer of it; a graph of the old group
 *             does nothing any more (normal: with an even seed, as it must be captured)
 *   grow      as none, which nobody dies in; then a joiner comes, by the file ADDRESS, and they go on with its device
 *   joiner    that one, which no launcher has started
 */
#define _GNU_SOURCE /* kill */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_job.h"
#include "cuda_rig.h"
#include "mp_rig.h"

enum { ROUNDS = 60, FIRST = 10, SECOND = 20, LAST = 30, SPREAD_US = 300 * 1000, TOKENS = 40, TOPK = 4, RANKS = 16 };

static struct {
    const char *scenario;
    uint64_t seed;
    atomic_int *left, *stopped;
    atomic_int *pid; /* of the rank that stops */
    uint8_t *missing;
} test;

static int is(const char *name)
{
    return strcmp(test.scenario, name) == 0;
}

static uint32_t last_rank(void)
{
    return mp_nranks() - 1;
}

/* ---- a rank that is out ---- */

/* Every call says so, and its end waits for nobody. */
static void leave(cuda_job_t *job, xep_group_t *group)
{
    xep_dispatch_args_t a = cuda_job_dispatch(job, NULL);
    MP_REFUSES(&job->host, &a, XEP_ERR_PEER, "this rank is out");
    cuda_job_close(job);
    ++*test.left;
    xep_group_destroy(group);
    printf("left\n");
    exit(0);
}

/* Whether others have left this rank out by now: then what its device has is not compared. */
static int is_left(cuda_job_t *job, xep_handle_t *handle)
{
    size_t stride;
    cuda_rig_wait(job->stream);
    return mp_input(handle, &stride) == NULL;
}

/* ---- an operation ---- */

static void check_dispatch(cuda_job_t *job, xep_handle_t *handle)
{
    uint8_t is_out[RANKS];
    uint32_t out = 0;
    MP_CHECK(mp_recv(handle)->out != NULL);
    cuda_rig_get(is_out, mp_recv(handle)->out, mp_nranks(), job->stream);
    for (uint32_t r = 0; r < mp_nranks(); r++) out |= (uint32_t)(is_out[r] != 0) << r;
    mp_job_tokens_without(&job->host, out);
    cuda_job_check_recv(job, handle);
    mp_job_tokens_without(&job->host, 0);
}

/* A selection is missing if and only if its expert is on a rank that is out. */
static void check_combine(cuda_job_t *job, const xep_combine_args_t *args)
{
    uint8_t missing[TOKENS * TOPK];
    cuda_rig_get(missing, test.missing, sizeof missing, job->stream);
    (void)mp_job_sums_without(&job->host, missing);
    cuda_job_check_sums(job, args);
    job->host.shape.without = 0;
}

static xep_combine_args_t outputs_of(cuda_job_t *job, xep_handle_t *handle)
{
    xep_combine_args_t a = cuda_job_outputs(job, handle);
    static uint8_t poison[TOKENS * TOPK]; /* which the stream may read later */
    memset(poison, MP_POISON, sizeof poison);
    cuda_rig_put(test.missing, poison, sizeof poison, job->stream);
    a.missing = test.missing;
    return a;
}

/* XEP_ERR_PEER: this rank is out. Mode ll: of every other round what ranks have summed. */
static xep_status_t combine(cuda_job_t *job, xep_handle_t *handle, int at_owner)
{
    xep_combine_args_t a = outputs_of(job, handle);
    job->host.shape.sum_at_owner = at_owner;
    if (at_owner) a.flags = XEP_COMBINE_SUM_AT_OWNER;
    xep_status_t status = xep_combine(handle, &a, NULL);
    if (status == XEP_OK && is_left(job, handle)) status = XEP_ERR_PEER;
    if (status == XEP_OK) check_combine(job, &a);
    job->host.shape.sum_at_owner = 0;
    return status;
}

static xep_status_t play_round(cuda_job_t *job, uint32_t round)
{
    xep_handle_t *handle = NULL;
    cuda_job_payload(job, 1000 + round);
    xep_dispatch_args_t a = cuda_job_dispatch(job, NULL);
    xep_status_t status = xep_dispatch(job->host.buffer, &a, &handle, NULL);
    if (status != XEP_OK) return status;
    if (is_left(job, handle)) return XEP_ERR_PEER;
    check_dispatch(job, handle);
    if (is("between") && round == SECOND && mp_rank() + 1 == last_rank()) raise(SIGKILL);
    status = combine(job, handle, job->host.shape.by_expert && round % 2 == 1);
    xep_handle_release(handle);
    return status;
}

/* ---- who dies when ---- */

/* The two that are left are those that the seed chooses. */
static int is_victim(uint32_t rank)
{
    return is("anywhere") && (rank + test.seed) % mp_nranks() >= 2;
}

static void strike(xep_group_t *group, uint32_t round)
{
    const int last = mp_rank() == last_rank();
    if ((is("between") || is("shrink")) && round == FIRST && last) raise(SIGKILL);
    if (is("asked") && round == FIRST && mp_rank() == 0) MP_OK(xep_group_mask_set(group, last_rank()));
    if (is("stopped") && round == FIRST && last) {
        atomic_store(test.pid, getpid());
        raise(SIGSTOP);
    }
    if (is("stopped") && round == SECOND && mp_rank() == 0) kill(atomic_load(test.pid), SIGCONT);
}

/* ---- a graph ---- */

/* A replay has no call in which the host could find out: the kernel does, at its deadline. */
static void replay(cuda_job_t *job, xep_group_t *group)
{
    xep_handle_t *handle = NULL, *next = NULL;
    void *graphs[2];
    for (int g = 0; g < 2; g++) {
        cuda_job_payload(job, 50 + (uint64_t)g);
        cuda_rig_wait(job->stream);
        xep_dispatch_args_t a = cuda_job_dispatch(job, NULL);
        cuda_rig_capture(job->stream);
        MP_OK(xep_dispatch(job->host.buffer, &a, &handle, NULL));
        graphs[g] = cuda_rig_graph(job->stream);
        for (int i = 0; i < 3; i++) {
            if (g == 0 && i == 1 && mp_rank() == last_rank()) raise(SIGKILL);
            cuda_job_payload(job, 100 + (uint64_t)i);
            cuda_rig_replay(graphs[g], job->stream);
            cuda_rig_wait(job->stream);
            check_dispatch(job, handle);
            const xep_combine_args_t b = outputs_of(job, handle);
            cuda_rig_capture(job->stream);
            MP_OK(xep_combine(handle, &b, NULL));
            void *combined = cuda_rig_graph(job->stream);
            cuda_rig_replay(combined, job->stream);
            check_combine(job, &b);
            cuda_rig_free_graph(combined);
        }
        xep_handle_release(handle);
    }
    for (int g = 0; g < 2; g++) cuda_rig_free_graph(graphs[g]);
    MP_OK(play_round(job, 0));
    MP_CHECK(__builtin_popcount(mp_ranks_out(group)) == 1 && next == NULL);
}

/* ---- the group that is left ---- */

/* Of the group that was: a launch of its graph ends, and a call says how it is. */
static void replay_of_before(cuda_job_t *before, void *graph)
{
    cuda_rig_replay(graph, before->stream);
    cuda_rig_wait(before->stream);
    xep_dispatch_args_t a = cuda_job_dispatch(before, NULL);
    MP_REFUSES(&before->host, &a, XEP_ERR_ABORTED, "it called xep_group_shrink()");
}

static xep_group_t *go_on_smaller(xep_group_t *group, mp_case_t c, cuda_job_t *before, void *stream)
{
    const uint32_t left = mp_nranks() - 1;
    const xep_shrink_args_t args = XEP_SHRINK_ARGS_INIT;
    xep_group_t *next;
    xep_handle_t *handle = NULL;
    cuda_job_t job;
    xep_dispatch_args_t a = cuda_job_dispatch(before, NULL);
    cuda_rig_capture(stream);
    MP_OK(xep_dispatch(before->host.buffer, &a, &handle, NULL));
    void *graph = cuda_rig_graph(stream);
    cuda_rig_replay(graph, stream);
    cuda_rig_wait(stream);
    MP_OK(xep_group_shrink(group, &args, &next));
    replay_of_before(before, graph);
    cuda_rig_free_graph(graph);
    cuda_job_close(before);
    xep_group_destroy(group);
    mp_go_on(next);
    MP_CHECK(mp_nranks() == left);
    cuda_job_open(&job, &c, 3, next, stream);
    job.counts_there = strcmp(c.mode, "normal") == 0;
    for (uint32_t round = 0; round < 3; round++) MP_OK(play_round(&job, round));
    cuda_job_close(&job);
    return next;
}

/* ---- the group with a joiner ---- */

/* old: NULL of the joiner, which has the others' params. */
static void go_on_larger(xep_group_t *group, const xep_buffer_t *old, mp_case_t c, void *stream)
{
    xep_buffer_t *fresh;
    cuda_job_t job;
    MP_OK(xep_buffer_follow(old, group, &fresh));
    cuda_job_open(&job, &c, 3, group, stream);
    xep_buffer_destroy(job.host.buffer);
    job.host.buffer = fresh;
    job.counts_there = strcmp(c.mode, "normal") == 0;
    for (uint32_t round = 0; round < 3; round++) MP_OK(play_round(&job, round));
    cuda_job_close(&job);
}

static xep_group_t *grow(xep_group_t *group, const char *address, cuda_job_t *before, mp_case_t c, void *stream)
{
    const uint32_t nranks = mp_nranks();
    xep_grow_args_t args = XEP_GROW_ARGS_INIT;
    xep_group_t *next;
    args.joiners = 1;
    args.path = mp_rank() == 0 ? address : NULL;
    MP_OK(xep_group_grow(group, &args, &next));
    mp_go_on(next);
    MP_CHECK(mp_nranks() == nranks + 1);
    go_on_larger(next, before->host.buffer, c, stream);
    cuda_job_close(before);
    xep_group_destroy(group);
    return next;
}

static xep_group_t *join(const char *address)
{
    xep_join_params_t params = XEP_JOIN_PARAMS_INIT;
    xep_group_t *group;
    params.path = address;
    MP_OK(xep_group_join(&params, &group));
    mp_go_on(group);
    return group;
}

int main(int argc, char **argv)
{
    const mp_case_t c = {.name = "masks",
                         .mode = argc > 1 ? argv[1] : "",
                         .owners = argc > 3 && strtoull(argv[3], NULL, 0) % 2 == 0 ? "cyclic" : NULL,
                         MP_SHAPE(24, TOPK, 296, TOKENS),
                         .quant = argc > 3 && strtoull(argv[3], NULL, 0) % 2 != 0 ? XEP_QUANT_MXFP8 : XEP_QUANT_NONE,
                         .mask = 100,
                         .slots = 3,
                         MP_CUDA,
                         .fixed_capacity = argc > 1 && strcmp(argv[1], "normal") == 0,
                         .timeout_ms = argc > 4 ? atoi(argv[4]) : 2000,
                         .on_failure = XEP_ON_FAILURE_MASK};
    test.scenario = argc > 2 ? argv[2] : "";
    test.seed = argc > 3 ? strtoull(argv[3], NULL, 0) : 0;
    xep_group_t *group = is("joiner") && argc > 5 ? join(argv[5]) : mp_group();
    if (!cuda_rig_open(mp_rank())) return mp_skip("there is no CUDA device");
    MP_CHECK(mp_nranks() <= RANKS);
    if (!is("joiner")) { /* which is in none of the group's calls so far */
        test.left = mp_counter(group);
        test.pid = mp_counter(group);
    }
    void *stream = cuda_rig_stream();
    test.missing = cuda_rig_alloc(NULL, TOKENS * TOPK);
    cuda_job_t job;
    if (is("joiner")) {
        go_on_larger(group, NULL, c, stream);
        cuda_rig_free(test.missing);
        xep_group_destroy(group);
        printf("survived\n");
        return 0;
    }
    cuda_job_open(&job, &c, 1 + test.seed, group, stream);
    job.counts_there = c.fixed_capacity && (test.seed % 2 == 0 || is("graph"));
    if (is_victim(mp_rank())) mp_die_within(test.seed * RANKS + mp_rank(), SPREAD_US);
    if (is("graph")) replay(&job, group);
    for (uint32_t round = 0; round < (is("anywhere") ? ROUNDS : LAST) && !is("graph"); round++) {
        strike(group, round);
        xep_status_t status = play_round(&job, round);
        if (status == XEP_ERR_PEER && (is("stopped") || is("asked")) && mp_rank() == last_rank()) leave(&job, group);
        MP_OK(status);
    }
    while (is_victim(mp_rank())) pause();
    if ((is("stopped") || is("asked")) && mp_rank() == 0) mp_await(test.left, 1);
    MP_OK(xep_group_barrier(group));
    MP_CHECK(__builtin_popcount(mp_ranks_out(group)) == (is("anywhere")             ? (int)mp_nranks() - 2
                                                         : is("between")            ? 2
                                                         : is("none") || is("grow") ? 0
                                                                                    : 1));
    if (is("grow") && argc > 5) group = grow(group, argv[5], &job, c, stream);
    else if (is("shrink")) group = go_on_smaller(group, c, &job, stream);
    else cuda_job_close(&job);
    cuda_rig_free(test.missing);
    xep_group_destroy(group);
    printf("survived\n");
    return 0;
}
