/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The mode "normal" on threads that are ranks, all of them mapped: what the simulator cannot show, since its ranks take
 * turns, is the order of plain stores and signal words. A thread sanitizer sees it at once; without one it is a race
 * that is run often.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <xep/plugin.h>

enum { RANKS = 4, TOKENS = 24, TOPK = 3, EXPERTS = 9, HIDDEN = 200, ROUNDS = 400 };

typedef struct job job_t;

/** A rank, its thread and its buffers. */
typedef struct rank {
    xep_env_t env; /* first: the mode hands it back */
    xep_wire_t wire;
    xep_shape_t shape;
    job_t *job;
    void *mode;
    uint64_t epoch, turn;
    xep_recv_t recv;
    float x[TOKENS][HIDDEN], out[TOKENS][HIDDEN], weights[TOKENS][TOPK], out_weights[TOKENS][TOPK];
    int64_t idx[TOKENS][TOPK];
    const char *failure;
} rank_t;

struct job {
    const xep_plugin_t *plugin;
    rank_t *ranks;
    atomic_int failed; /* a rank has given up: nobody waits for it */
};

/* ---- what the mode calls ---- */

static void *wire_map(xep_wire_t *wire, uint32_t rank)
{
    const rank_t *self = (rank_t *)((char *)wire - offsetof(rank_t, wire));
    return self->job->ranks[rank].env.heap;
}

static const xep_wire_ops_t wire_ops = {.size = sizeof wire_ops, .map = wire_map}; /* all mapped: nothing else is called */

static void env_parallel(const xep_env_t *env, xep_parallel_fn fn, void *arg)
{
    for (uint32_t i = 0; i < env->threads; i++) fn(arg, i, env->threads);
}

static void env_prefault(const xep_env_t *env, void *base, uint64_t bytes)
{
    (void)env;
    (void)base;
    (void)bytes;
}

static xep_status_t env_fail(const xep_env_t *env, xep_op_t *op, xep_status_t status, const char *format, ...)
{
    (void)op;
    ((rank_t *)env)->failure = format;
    return status;
}

/* ---- a round ---- */

static uint64_t hash(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t h = a * UINT64_C(0x9e3779b97f4a7c15) + b * UINT64_C(0xbf58476d1ce4e5b9) + c * UINT64_C(0x94d049bb133111eb);
    h = (h ^ h >> 29) * UINT64_C(0xd6e8feb86659fd93);
    return h ^ h >> 32;
}

static int64_t expert_of(uint64_t round, uint32_t rank, uint32_t token, uint32_t k)
{
    uint64_t h = hash(round * RANKS + rank, token, k);
    return h % 6 == 0 ? -1 : (int64_t)(h / 6 % EXPERTS);
}

/* Exact in any order of sums, so that only lost or early rows differ. */
static float value_of(uint64_t round, uint32_t rank, uint32_t token)
{
    return (float)(hash(round, rank, token) % 1000);
}

static uint32_t owner_of(int64_t expert)
{
    return expert < 3 ? 0 : (uint32_t)(expert - 3) / 2 + 1; /* 3, 2, 2, 2 */
}

static int goes_to(uint64_t round, uint32_t rank, uint32_t token, uint32_t to)
{
    for (uint32_t k = 0; k < TOPK; k++) {
        int64_t expert = expert_of(round, rank, token, k);
        if (expert >= 0 && owner_of(expert) == to) return 1;
    }
    return 0;
}

static xep_status_t finish(rank_t *rank, xep_op_t *op)
{
    xep_status_t status;
    while ((status = rank->job->plugin->progress(rank->mode, op)) == XEP_INPROGRESS && !rank->job->failed) sched_yield();
    return status;
}

static void dispatch(rank_t *rank, uint64_t round, uint32_t slot, char *state)
{
    xep_dispatch_args_t args = {.tokens = TOKENS, .x = rank->x, .x_stride = sizeof rank->x[0], .dtype = XEP_FP32,
                                .hidden = HIDDEN, .topk = TOPK, .topk_idx = rank->idx, .topk_idx_stride = sizeof rank->idx[0],
                                .topk_idx_dtype = XEP_INT64, .topk_weights = rank->weights[0],
                                .topk_weights_stride = sizeof rank->weights[0], .expert_alignment = 1};
    xep_op_t op = {.kind = XEP_OP_DISPATCH, .slot = slot, .cached_slot = XEP_NO_SLOT, .epoch = ++rank->epoch,
                   .turn = rank->turn++, .dispatch = &args, .recv = &rank->recv, .state = state};
    for (uint32_t t = 0; t < TOKENS; t++) {
        for (uint32_t k = 0; k < TOPK; k++) rank->idx[t][k] = expert_of(round, rank->shape.rank, t, k);
        for (uint32_t k = 0; k < TOPK; k++) rank->weights[t][k] = (float)(k + 1);
        for (uint32_t h = 0; h < HIDDEN; h++) rank->x[t][h] = value_of(round, rank->shape.rank, t) + (float)h;
    }
    if (rank->job->plugin->dispatch(rank->mode, &op) != XEP_OK || finish(rank, &op) != XEP_OK) rank->failure = "dispatch";
}

/* Rows are what their sources say; each has a multiple of it as the expert's output, written where combine reads it. */
static void experts_work(rank_t *rank, uint64_t round, uint32_t slot, float factor)
{
    void *input;
    size_t stride;
    uint64_t row = 0;
    if (rank->failure) return;
    while (rank->job->plugin->input(rank->mode, slot, &input, &stride) == XEP_INPROGRESS)
        if (rank->job->failed) return;
    for (uint32_t from = 0; from < RANKS; from++)
        for (uint32_t t = 0; t < TOKENS; t++) {
            const float *x = (const float *)((char *)rank->recv.x + row * rank->recv.x_stride);
            if (!goes_to(round, from, t, rank->shape.rank)) continue;
            if (rank->recv.src_token[row] != (int32_t)t || x[0] != value_of(round, from, t) || x[HIDDEN - 1] != x[0] + HIDDEN - 1)
                rank->failure = "a row is not what its source sent";
            for (uint32_t h = 0; h < HIDDEN; h++) ((float *)((char *)input + row * stride))[h] = factor * x[h];
            row++;
        }
    if (row != rank->recv.rows) rank->failure = "rows";
}

static void combine(rank_t *rank, uint64_t round, uint32_t slot, float factor, char *state)
{
    xep_combine_args_t args = {.dtype = XEP_FP32, .hidden = HIDDEN, .topk_weights = rank->recv.topk_weights,
                               .topk_weights_stride = TOPK * sizeof(float), .out = rank->out, .out_stride = sizeof rank->out[0],
                               .out_weights = rank->out_weights[0], .out_weights_stride = sizeof rank->out_weights[0]};
    xep_op_t op = {.kind = XEP_OP_COMBINE, .slot = slot, .cached_slot = XEP_NO_SLOT, .epoch = ++rank->epoch,
                   .turn = rank->turn - 1, .combine = &args, .recv = &rank->recv, .state = state};
    if (rank->failure) return;
    if (rank->job->plugin->combine(rank->mode, &op) != XEP_OK || finish(rank, &op) != XEP_OK) rank->failure = "combine";
    for (uint32_t t = 0; t < TOKENS; t++) {
        float copies = 0;
        for (uint32_t to = 0; to < RANKS; to++) copies += (float)goes_to(round, rank->shape.rank, t, to);
        for (uint32_t h = 0; h < HIDDEN; h++)
            if (rank->out[t][h] != factor * copies * rank->x[t][h]) rank->failure = "a sum";
        for (uint32_t k = 0; k < TOPK; k++)
            if (rank->out_weights[t][k] != (rank->idx[t][k] < 0 ? 0 : (float)(k + 1))) rank->failure = "a weight";
    }
}

static void *rank_main(void *arg)
{
    rank_t *rank = arg;
    char *state = malloc(rank->job->plugin->op_size);
    for (uint64_t round = 0; round < ROUNDS && !rank->failure; round++) {
        uint32_t slot = hash(round, rank->shape.rank, 7) % rank->shape.slots;
        memset(state, 0, rank->job->plugin->op_size);
        dispatch(rank, round, slot, state);
        for (int factor = 2; factor < 4; factor++) {
            experts_work(rank, round, slot, (float)factor);
            memset(state, 0, rank->job->plugin->op_size);
            combine(rank, round, slot, (float)factor, state);
        }
    }
    if (rank->failure) rank->job->failed = 1;
    free(state);
    return NULL;
}

/* ---- a job ---- */

static void rank_open(job_t *job, uint32_t index, xep_simd_t simd, uint64_t stream_bytes)
{
    rank_t *rank = &job->ranks[index];
    uint64_t rows;
    rank->job = job;
    rank->wire.ops = &wire_ops;
    rank->shape = (xep_shape_t){.rank = index, .nranks = RANKS, .experts = EXPERTS, .first_expert = index ? 2 * index + 1 : 0,
                                .local_experts = index ? 2 : 3, .topk = TOPK, .hidden = HIDDEN, .elem_bytes = 4,
                                .combine_elem_bytes = 4, .slots = 2, .tokens = TOKENS};
    rank->env = (xep_env_t){.size = sizeof rank->env, .shape = &rank->shape, .wire = &rank->wire, .threads = 2, .simd = simd,
                            .stream_bytes = stream_bytes, .parallel = env_parallel, .prefault = env_prefault, .fail = env_fail};
    assert_int_equal(job->plugin->heap_size(&rank->shape, &rank->env.heap_bytes, &rows), XEP_OK);
    assert_int_equal(posix_memalign(&rank->env.heap, 4096, rank->env.heap_bytes), 0);
    memset(rank->env.heap, 0, rank->env.heap_bytes);
}

static void job_run(const xep_plugin_t *plugin, xep_simd_t simd, uint64_t stream_bytes)
{
    job_t job = {plugin, calloc(RANKS, sizeof(rank_t)), 0};
    pthread_t threads[RANKS];
    const char *failure = NULL;
    for (uint32_t r = 0; r < RANKS; r++) rank_open(&job, r, simd, stream_bytes);
    for (uint32_t r = 0; r < RANKS; r++) assert_int_equal(plugin->open(&job.ranks[r].env, &job.ranks[r].mode), XEP_OK);
    for (uint32_t r = 0; r < RANKS; r++) assert_int_equal(pthread_create(&threads[r], NULL, rank_main, &job.ranks[r]), 0);
    for (uint32_t r = 0; r < RANKS; r++) pthread_join(threads[r], NULL);
    for (uint32_t r = 0; r < RANKS; r++) {
        if (job.ranks[r].failure && (!failure || strcmp(failure, "dispatch") == 0)) failure = job.ranks[r].failure;
        plugin->close(job.ranks[r].mode);
        free(job.ranks[r].env.heap);
    }
    free(job.ranks);
    if (failure) fail_msg("simd %d: %s", (int)simd, failure);
}

static void test_threads(void **state)
{
    const char *folder = getenv("XEP_PLUGIN_PATH");
    char path[4096];
    snprintf(path, sizeof path, "%s/xep_normal.so", folder ? folder : ".libs");
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    (void)state;
    if (!object) fail_msg("%s", dlerror());
    job_run(dlsym(object, "xep_plugin"), XEP_SIMD_SCALAR, UINT64_MAX);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) job_run(dlsym(object, "xep_plugin"), XEP_SIMD_AVX2, 0);
    if (__builtin_cpu_supports("avx512f")) job_run(dlsym(object, "xep_plugin"), XEP_SIMD_AVX512, 0);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_threads)};
    return cmocka_run_group_tests_name("normal_threads", tests, NULL, NULL);
}
