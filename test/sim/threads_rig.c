/* SPDX-License-Identifier: BSD-3-Clause */

#include "threads_rig.h"

#include <dlfcn.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

struct threads_job {
    const xep_plugin_t *plugin;
    threads_rank_t *ranks;
    threads_main_fn main;
    atomic_int failed;   /* a rank has given up: nobody waits for it */
    atomic_uint running; /* ranks */
};

/* ---- what the mode calls ---- */

static void *wire_map(xep_wire_t *wire, uint32_t rank)
{
    const threads_rank_t *self = (threads_rank_t *)((char *)wire - offsetof(threads_rank_t, wire));
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

static uint64_t env_now_ns(const xep_env_t *env)
{
    (void)env;
    return 1;
}

static xep_status_t env_fail(const xep_env_t *env, xep_op_t *op, xep_status_t status, const char *format, ...)
{
    (void)op;
    ((threads_rank_t *)env)->failure = format;
    return status;
}

/* ---- for ranks ---- */

uint64_t threads_hash(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t h = a * UINT64_C(0x9e3779b97f4a7c15) + b * UINT64_C(0xbf58476d1ce4e5b9) + c * UINT64_C(0x94d049bb133111eb);
    h = (h ^ h >> 29) * UINT64_C(0xd6e8feb86659fd93);
    return h ^ h >> 32;
}

xep_late_t threads_late(threads_late_t *late)
{
    return (xep_late_t){.ranks = late->ranks, .wait_ns = late->wait_ns};
}

xep_status_t threads_finish(threads_rank_t *rank, xep_op_t *op)
{
    xep_status_t status;
    while ((status = rank->job->plugin->progress(rank->mode, op)) == XEP_INPROGRESS && !rank->job->failed) sched_yield();
    return status;
}

char *threads_input(threads_rank_t *rank, uint32_t slot, size_t *stride_p)
{
    void *input = NULL;
    while (rank->job->plugin->input(rank->mode, slot, &input, stride_p) == XEP_INPROGRESS) {
        if (rank->job->failed) return NULL;
        sched_yield();
    }
    return input;
}

/* ---- delays ---- */

static void on_signal(int number)
{
    const struct timespec some = {0, 50 * 1000};
    (void)number;
    nanosleep(&some, NULL);
}

/* Stops one rank after the other, wherever it is. */
static void delay_ranks(threads_job_t *job, uint32_t nranks)
{
    const struct timespec pause = {0, 20 * 1000};
    for (uint64_t n = 0; job->running > 0; n++) {
        pthread_kill(job->ranks[threads_hash(n, 0, 0) % nranks].thread, SIGUSR1); /* joined later: a thread that has ended is one still */
        nanosleep(&pause, NULL);
    }
}

/* ---- a job ---- */

static void *rank_main(void *arg)
{
    threads_rank_t *rank = arg;
    rank->job->main(rank);
    if (rank->failure) rank->job->failed = 1;
    rank->job->running--;
    return NULL;
}

static void rank_open(threads_job_t *job, uint32_t index, const xep_shape_t *shape, xep_simd_t simd, uint64_t stream_bytes)
{
    threads_rank_t *rank = &job->ranks[index];
    uint32_t each = shape->experts / shape->nranks, more = shape->experts % shape->nranks;
    uint64_t rows;
    rank->job = job;
    rank->wire.ops = &wire_ops;
    rank->shape = *shape;
    rank->shape.rank = index;
    rank->shape.first_expert = index * each + (index < more ? index : more);
    rank->shape.local_experts = each + (index < more);
    rank->env = (xep_env_t){.size = sizeof rank->env, .shape = &rank->shape, .wire = &rank->wire, .threads = 2, .simd = simd,
                            .stream_bytes = stream_bytes, .parallel = env_parallel, .prefault = env_prefault, .now_ns = env_now_ns, .fail = env_fail};
    assert_int_equal(job->plugin->heap_size(&rank->shape, &rank->env.heap_bytes, &rows), XEP_OK);
    assert_int_equal(posix_memalign(&rank->env.heap, 4096, rank->env.heap_bytes), 0);
    memset(rank->env.heap, 0, rank->env.heap_bytes);
}

static void run(const xep_plugin_t *plugin, const xep_shape_t *shape, threads_main_fn main, int delays, xep_simd_t simd,
                uint64_t stream_bytes)
{
    threads_job_t job = {.plugin = plugin, .main = main, .running = shape->nranks};
    const char *failure = NULL;
    job.ranks = calloc(shape->nranks, sizeof *job.ranks);
    for (uint32_t r = 0; r < shape->nranks; r++) rank_open(&job, r, shape, simd, stream_bytes);
    for (uint32_t r = 0; r < shape->nranks; r++) assert_int_equal(plugin->open(&job.ranks[r].env, &job.ranks[r].mode), XEP_OK);
    for (uint32_t r = 0; r < shape->nranks; r++)
        assert_int_equal(pthread_create(&job.ranks[r].thread, NULL, rank_main, &job.ranks[r]), 0);
    if (delays) delay_ranks(&job, shape->nranks);
    for (uint32_t r = 0; r < shape->nranks; r++) pthread_join(job.ranks[r].thread, NULL);
    for (uint32_t r = 0; r < shape->nranks; r++) {
        if (job.ranks[r].failure && (!failure || strcmp(failure, "dispatch") == 0)) failure = job.ranks[r].failure;
        plugin->close(job.ranks[r].mode);
        free(job.ranks[r].env.heap);
    }
    free(job.ranks);
    if (failure) fail_msg("simd %d: %s", (int)simd, failure);
}

void threads_run(const xep_plugin_t *plugin, const xep_shape_t *shape, threads_main_fn main, int delays)
{
    signal(SIGUSR1, on_signal);
    run(plugin, shape, main, delays, XEP_SIMD_SCALAR, UINT64_MAX);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) run(plugin, shape, main, delays, XEP_SIMD_AVX2, 0);
    if (__builtin_cpu_supports("avx512f")) run(plugin, shape, main, delays, XEP_SIMD_AVX512, 0);
#endif
}

const xep_plugin_t *threads_plugin(const char *mode)
{
    const char *folder = getenv("XEP_PLUGIN_PATH");
    char path[4096];
    snprintf(path, sizeof path, "%s/xep_%s.so", folder ? folder : ".libs", mode);
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!object) fail_msg("%s", dlerror());
    return dlsym(object, "xep_plugin");
}
