/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * How long operations on device memory take as a program calls them, on a device for each rank: contrib/check-cuda.sh.
 * Twenty calls one after the other, then a wait for the stream; the slowest rank, the median of five such rounds.
 *
 *     xep_run -n 4 cuda_calls              # all shapes
 *     xep_run -n 4 cuda_calls 2048 1024    # rows of bf16 in mode normal, of so many tokens
 *     xep_run -n 4 cuda_calls ll 64        # mode ll, with so many multiprocessors
 *     XEP_MAP=never XEP_PROGRESS=thread xep_run -n 4 cuda_calls staged 128    # mode ll, of so many tokens
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_job.h"
#include "cuda_rig.h"
#include "mp_rig.h"

enum { CALLS = 20, ROUNDS = 5, MOST_RANKS = 64 };

typedef struct bench {
    cuda_job_t job;
    xep_group_t *group;
    xep_handle_t *handle; /* whose routing is used again, and that is combined */
    void *graph;
    uint64_t room;   /* rows of a slot */
    uint32_t flags;  /* of combines */
    int32_t *counts; /* of a layout */
    void *outputs;   /* to be copied into the input; NULL: they are there */
    xep_expand_args_t expand;
    xep_reduce_args_t reduce;
} bench_t;

static void dispatch(bench_t *bench, xep_handle_t *cached)
{
    xep_dispatch_args_t a = cuda_job_dispatch(&bench->job, cached);
    xep_handle_t *handle;
    MP_OK(xep_dispatch(bench->job.host.buffer, &a, &handle, NULL));
    xep_handle_release(handle);
}

static void dispatch_new(bench_t *bench)
{
    dispatch(bench, NULL);
}

static void dispatch_cached(bench_t *bench)
{
    dispatch(bench, bench->handle);
}

/* No call waits, so the device has the next one before it is done with this one. */
static void dispatch_there(bench_t *bench)
{
    xep_dispatch_args_t a = cuda_job_dispatch(&bench->job, NULL);
    xep_handle_t *handle;
    a.flags = XEP_DISPATCH_COUNTS_THERE;
    a.capacity = bench->room;
    a.recv_rows_p = NULL;
    MP_OK(xep_dispatch(bench->job.host.buffer, &a, &handle, NULL));
    xep_handle_release(handle);
}

static void layout(bench_t *bench)
{
    const mp_case_t *c = bench->job.host.c;
    const xep_layout_args_t args = {.size = sizeof args,
                                    .tokens = c->tokens,
                                    .topk = c->topk,
                                    .experts = c->experts,
                                    .nranks = mp_nranks(),
                                    .topk_idx = bench->job.idx,
                                    .buffer = bench->job.host.buffer,
                                    .stream = bench->job.stream};
    int32_t *counts = bench->counts;
    xep_layout_t out = {.size = sizeof out,
                        .tokens_per_rank = counts,
                        .tokens_per_expert = counts + mp_nranks(),
                        .token_in_rank = (uint8_t *)(counts + mp_nranks() + c->experts)};
    MP_OK(xep_layout(&args, &out));
}

static void combine(bench_t *bench)
{
    xep_combine_args_t a = XEP_COMBINE_ARGS_INIT;
    a.x = bench->outputs;
    a.flags = bench->flags;
    a.out = bench->job.out;
    a.out_stride = bench->job.host.out_stride;
    a.stream = bench->job.stream;
    MP_OK(xep_combine(bench->handle, &a, NULL));
}

/* ---- rows by expert: what a grouped product reads and writes, each expert at a multiple of 128 rows ---- */

static void open_experts(bench_t *bench)
{
    const xep_recv_t *recv = mp_recv(bench->handle);
    uint64_t rows = 0;
    size_t stride;
    for (uint32_t e = 0; e < recv->local_experts; e++) rows += (recv->expert_rows[e] + 127) / 128 * 128;
    bench->expand = (xep_expand_args_t){.size = sizeof bench->expand,
                                        .capacity = rows,
                                        .expert_alignment = 128,
                                        .slots = cuda_rig_alloc(NULL, bench->room * recv->topk * 4),
                                        .expert_begin = cuda_rig_alloc(NULL, recv->local_experts * 8ul),
                                        .expert_count = cuda_rig_alloc(NULL, recv->local_experts * 8ul),
                                        .x = cuda_rig_alloc(NULL, rows * bench->job.host.c->hidden * 2),
                                        .scales = cuda_rig_alloc(NULL, rows * recv->nscales * 4ul + 1),
                                        .stream = bench->job.stream};
    if (recv->scales == NULL) cuda_rig_free(bench->expand.scales), bench->expand.scales = NULL;
    bench->reduce = (xep_reduce_args_t){.size = sizeof bench->reduce,
                                        .slots = bench->expand.slots,
                                        .x = bench->expand.x,
                                        .out = mp_input(bench->handle, &stride),
                                        .stream = bench->job.stream};
    bench->reduce.out_stride = stride;
}

static void close_experts(bench_t *bench)
{
    void *arrays[] = {bench->expand.slots, bench->expand.expert_begin, bench->expand.expert_count, bench->expand.x,
                      bench->expand.scales};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) cuda_rig_free(arrays[i]);
}

static void expand(bench_t *bench)
{
    MP_OK(xep_handle_expand(bench->handle, &bench->expand));
}

static void reduce(bench_t *bench)
{
    MP_OK(xep_handle_reduce(bench->handle, &bench->reduce));
}

static void dispatch_experts(bench_t *bench, uint32_t flags)
{
    xep_dispatch_args_t a = cuda_job_dispatch(&bench->job, NULL);
    xep_handle_t *handle;
    a.flags |= flags;
    if ((flags & XEP_DISPATCH_COUNTS_THERE) != 0) a.capacity = bench->room, a.recv_rows_p = NULL;
    MP_OK(xep_dispatch(bench->job.host.buffer, &a, &handle, NULL));
    MP_OK(xep_handle_expand(handle, &bench->expand));
    xep_handle_release(handle);
}

static void dispatch_expand(bench_t *bench)
{
    dispatch_experts(bench, XEP_DISPATCH_WILL_EXPAND);
}

static void dispatch_then_expand(bench_t *bench)
{
    dispatch_experts(bench, 0);
}

static void dispatch_expand_there(bench_t *bench)
{
    dispatch_experts(bench, XEP_DISPATCH_WILL_EXPAND | XEP_DISPATCH_COUNTS_THERE);
}

static void combine_expanded(bench_t *bench)
{
    xep_combine_args_t a = XEP_COMBINE_ARGS_INIT;
    a.x = bench->expand.x;
    a.slots = bench->expand.slots;
    a.out = bench->job.out;
    a.out_stride = bench->job.host.out_stride;
    a.stream = bench->job.stream;
    MP_OK(xep_combine(bench->handle, &a, NULL));
}

/* Both phases of a dispatch, and of a combine, with nothing between them. */
static void round_trip(bench_t *bench)
{
    xep_dispatch_args_t a = cuda_job_dispatch(&bench->job, NULL);
    xep_handle_t *handle;
    MP_OK(xep_dispatch(bench->job.host.buffer, &a, &handle, NULL));
    MP_CHECK(mp_input(handle, NULL) != NULL);
    xep_combine_args_t b = XEP_COMBINE_ARGS_INIT;
    b.out = bench->job.out;
    b.out_stride = bench->job.host.out_stride;
    b.flags = bench->flags;
    b.stream = bench->job.stream;
    MP_OK(xep_combine(handle, &b, NULL));
    xep_handle_release(handle);
}

/* So many operations as a graph that is replayed: what they take without the calls. */
static void replay(bench_t *bench)
{
    cuda_rig_replay(bench->graph, bench->job.stream);
}

static double time_us(bench_t *bench, void (*call)(bench_t *bench))
{
    double us[ROUNDS], all[MOST_RANKS];
    for (int round = -1; round < ROUNDS; round++) { /* the first one is not counted */
        MP_OK(xep_group_barrier(bench->group));
        double begin = mp_now();
        for (int i = 0; i < CALLS; i++) call(bench);
        cuda_rig_wait(bench->job.stream);
        double mine = (mp_now() - begin) * 1e6 / CALLS;
        MP_OK(xep_group_allgather(bench->group, &mine, all, sizeof mine));
        for (uint32_t r = 0; r < mp_nranks() && round >= 0; r++)
            if (r == 0 || all[r] > us[round]) us[round] = all[r];
    }
    mp_sort(us, ROUNDS);
    return us[ROUNDS / 2];
}

/* Rows a rank sends to others, on average. */
static double wire_rows(const xep_recv_t *recv)
{
    uint32_t n = mp_nranks();
    uint64_t rows = 0;
    for (uint32_t i = 0; i < n * n; i++) rows += i / n == i % n ? 0 : recv->rank_rows[i];
    return (double)rows / n;
}

/* The same as a graph that is replayed. */
static double time_graph(bench_t *bench, void (*call)(bench_t *bench))
{
    cuda_rig_wait(bench->job.stream);
    cuda_rig_capture(bench->job.stream);
    call(bench);
    bench->graph = cuda_rig_graph(bench->job.stream);
    double us = time_us(bench, replay);
    cuda_rig_free_graph(bench->graph);
    return us;
}

static void run(xep_group_t *group, const mp_case_t *c, void *stream)
{
    bench_t bench = {.group = group};
    cuda_job_open(&bench.job, c, 7, group, stream);
    xep_dispatch_args_t a = cuda_job_dispatch(&bench.job, NULL);
    MP_OK(xep_dispatch(bench.job.host.buffer, &a, &bench.handle, NULL));
    MP_CHECK(mp_input(bench.handle, NULL) != NULL);
    double rows = wire_rows(mp_recv(bench.handle));
    double bytes = rows * c->hidden * (double)xep_dtype_size(bench.job.host.shape.dtype), back = rows * c->hidden * 2;
    double whole = time_us(&bench, dispatch_new), cached = time_us(&bench, dispatch_cached);
    xep_buffer_info_t info = XEP_BUFFER_INFO_INIT;
    MP_OK(xep_buffer_query(bench.job.host.buffer, &info));
    bench.room = info.recv_rows;
    bench.counts = cuda_rig_alloc(NULL, (mp_nranks() + c->experts) * sizeof(int32_t) + c->tokens * mp_nranks());
    double sum = time_us(&bench, combine), there = time_us(&bench, dispatch_there), lay = time_us(&bench, layout);
    double there_again = time_graph(&bench, dispatch_there), sum_again = time_graph(&bench, combine);
    cuda_rig_free(bench.counts);
    bench.outputs = cuda_rig_alloc(NULL, mp_recv(bench.handle)->rows * c->hidden * 2);
    double copied = time_us(&bench, combine);
    cuda_rig_free(bench.outputs);
    bench.outputs = NULL;
    open_experts(&bench);
    double expanding = time_us(&bench, expand), reducing = time_us(&bench, reduce);
    double behind = time_us(&bench, dispatch_then_expand), forward = time_us(&bench, dispatch_expand);
    double forward_again = time_graph(&bench, dispatch_expand_there), backward = time_us(&bench, combine_expanded);
    close_experts(&bench);
    if (mp_rank() == 0)
        printf(
            "%-14s T %4llu, SMs %2u: dispatch %7.1f us (%3.0f GB/s), cached %7.1f us (%3.0f GB/s), combine %7.1f us "
            "(%3.0f GB/s), of copied input %7.1f us, dispatch with counts there %7.1f us, layout %5.1f us; replayed: "
            "dispatch with counts there %6.1f us, combine %6.1f us; by expert: dispatch %7.1f us, replayed "
            "%7.1f (expand alone %6.1f, behind it %7.1f), combine %7.1f us (reduce alone %6.1f)\n",
            c->name, (unsigned long long)c->tokens, c->threads, whole, bytes / whole / 1e3, cached,
            bytes / cached / 1e3, sum, back / sum / 1e3, copied, there, lay, there_again, sum_again, forward,
            forward_again, expanding, behind, backward, reducing);
    fflush(stdout);
    xep_handle_release(bench.handle);
    cuda_job_close(&bench.job);
}

/*
 * Of ll: every call by itself, and as graphs of one dispatch and of a dispatch and its combine. Where the weights were
 * sent combines sum at owners.
 */
static void run_ll(xep_group_t *group, const mp_case_t *c, void *stream)
{
    bench_t bench = {.group = group, .flags = c->sent ? XEP_COMBINE_SUM_AT_OWNER : 0u};
    cuda_job_open(&bench.job, c, 7, group, stream);
    xep_dispatch_args_t a = cuda_job_dispatch(&bench.job, NULL);
    MP_OK(xep_dispatch(bench.job.host.buffer, &a, &bench.handle, NULL));
    MP_CHECK(mp_input(bench.handle, NULL) != NULL);
    double one = time_us(&bench, dispatch_new), sum = time_us(&bench, combine), both = time_us(&bench, round_trip);
    double one_again = time_graph(&bench, dispatch_new), sum_again = time_graph(&bench, combine),
           both_again = time_graph(&bench, round_trip);
    if (mp_rank() == 0)
        printf("%-18s T %4llu, SMs %3u: dispatch %6.1f us, combine %6.1f us, both %6.1f us; replayed: %6.1f, %6.1f, "
               "%6.1f us\n",
               c->name, (unsigned long long)c->tokens, c->threads, one, sum, both, one_again, sum_again, both_again);
    fflush(stdout);
    xep_handle_release(bench.handle);
    cuda_job_close(&bench.job);
}

/* Rows go through the host (XEP_MAP=never), with XEP_PROGRESS=thread: the handle of a graph stays as long as that. */
static void dispatch_kept(bench_t *bench)
{
    xep_dispatch_args_t a = cuda_job_dispatch(&bench->job, NULL);
    MP_OK(xep_dispatch(bench->job.host.buffer, &a, &bench->handle, NULL));
}

static void run_staged(xep_group_t *group, uint64_t tokens, xep_quant_t quant, void *stream)
{
    bench_t bench = {.group = group};
    mp_case_t c = {.name = quant == XEP_QUANT_NONE ? "staged ll bf16" : "staged ll e4m3",
                   .mode = "ll",
                   MP_SHAPE(288, 8, 7168, tokens),
                   .quant = quant,
                   .weights = 1,
                   .fixed_capacity = 1,
                   MP_CUDA};
    cuda_job_open(&bench.job, &c, 7, group, stream);
    dispatch_kept(&bench);
    MP_CHECK(mp_input(bench.handle, NULL) != NULL);
    const double one = time_us(&bench, dispatch_new), sum = time_us(&bench, combine);
    xep_handle_release(bench.handle);
    const double one_again = time_graph(&bench, dispatch_kept);
    MP_CHECK(mp_input(bench.handle, NULL) != NULL);
    const double sum_again = time_graph(&bench, combine);
    if (mp_rank() == 0)
        printf("%s T %4llu: dispatch %7.1f us, combine %7.1f us; replayed: %7.1f, %7.1f us\n", c.name,
               (unsigned long long)tokens, one, sum, one_again, sum_again);
    fflush(stdout);
    xep_handle_release(bench.handle);
    cuda_job_close(&bench.job);
}

static void run_tokens(xep_group_t *group, uint64_t tokens, void *stream)
{
    for (uint32_t processors = 8; processors <= 24; processors += 8) {
        mp_case_t c = {.name = "bf16", MP_SHAPE(256, 8, 7168, tokens), .memory = XEP_MEMORY_CUDA};
        c.threads = processors;
        run(group, &c, stream);
    }
}

static void run_ll_shapes(xep_group_t *group, uint32_t processors, void *stream)
{
    const mp_case_t shapes[] = {
        {.name = "ll e4m3", MP_SHAPE(288, 8, 7168, 128), .quant = XEP_QUANT_E4M3},
        {.name = "ll bf16", MP_SHAPE(288, 8, 7168, 128)},
        {.name = "ll bf16, at owners", MP_SHAPE(288, 8, 7168, 128), .sent = 1},
    };
    xep_mode_info_t can = XEP_MODE_INFO_INIT;
    MP_OK(xep_mode_query("ll", XEP_MEMORY_CUDA, &can));
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        mp_case_t c = shapes[s];
        if (c.sent && (can.features & XEP_CAN_SUM_AT_OWNER) == 0) continue; /* an older plugin */
        c.mode = "ll";
        c.weights = 1;
        c.slots = 4;
        c.memory = XEP_MEMORY_CUDA;
        c.threads = processors;
        run_ll(group, &c, stream);
    }
}

int main(int argc, char **argv)
{
    static const uint32_t processors[] = {8, 16, 24};
    xep_group_t *group = mp_group();
    MP_CHECK(mp_nranks() <= MOST_RANKS);
    if (!cuda_rig_open(mp_rank())) return mp_skip("there is no CUDA device");
    void *stream = cuda_rig_stream();
    if (argc > 2 && strcmp(argv[1], "ll") == 0) {
        run_ll_shapes(group, (uint32_t)strtoul(argv[2], NULL, 10), stream);
        xep_group_destroy(group);
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "staged") == 0) {
        for (int i = 2; i < argc; i++) run_staged(group, strtoull(argv[i], NULL, 10), XEP_QUANT_NONE, stream);
        for (int i = 2; i < argc; i++) run_staged(group, strtoull(argv[i], NULL, 10), XEP_QUANT_E4M3, stream);
        xep_group_destroy(group);
        return 0;
    }
    if (argc > 1) {
        for (int i = 1; i < argc; i++) run_tokens(group, strtoull(argv[i], NULL, 10), stream);
        xep_group_destroy(group);
        return 0;
    }
    const mp_case_t shapes[] = {
        {.name = "bf16", MP_SHAPE(256, 8, 7168, 4096), .memory = XEP_MEMORY_CUDA},
        {.name = "e4m3 + scales",
         MP_SHAPE(256, 8, 7168, 4096),
         .nscales = 56,
         .dtype = XEP_E4M3,
         .memory = XEP_MEMORY_CUDA},
        {.name = "bf16", MP_SHAPE(256, 8, 7168, 128), .memory = XEP_MEMORY_CUDA},
    };
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (size_t i = 0; i < sizeof processors / sizeof processors[0]; i++) {
            mp_case_t c = shapes[s];
            c.threads = processors[i];
            run(group, &c, stream);
        }
    static const uint32_t more[] = {8, 16, 32, 64, 128};
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++) run_ll_shapes(group, more[i], stream);
    xep_group_destroy(group);
    return 0;
}
