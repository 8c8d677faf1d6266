/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Times operations and limits, iteration by iteration in one loop, so that both see the
 * same machine; what comes first changes from iteration to iteration. Each step starts at
 * a barrier of the group and ends at one: with more ranks than cores, what the first to end does
 * next would take the core of the last (4 ranks on 2 cores: 4.8 ms in place of 2.2).
 */

#include "perf_time.h"

#include <stdlib.h>

#include "oracle_alloc.h"
#include "perf_clock.h"
#include "perf_cuda.h"
#include "perf_cuda_limit.h"
#include "perf_fixed.h"
#include "perf_limit.h"
#include "perf_ops.h"
#include "perf_peer.h"
#include "perf_say.h"
#include "perf_waits.h"

/* The steps timed: the operations, the limits with cached and with streaming stores, the operations with computing
 * between their phases, those without tokens, and the peer with either kind of stores. */
enum {
    KIND_OPS,
    KIND_CACHED,
    KIND_STREAMING,
    KIND_OVERLAP,
    KIND_EMPTY,
    KIND_PEER_CACHED,
    KIND_PEER_STREAMING,
    KINDS,
    STEPS = KINDS * PERF_OPS
};

typedef struct sample {
    uint64_t begin, sent, end, cpu, device; /* ns */
} sample_t;

typedef struct timing {
    perf_t *perf;
    perf_limit_t *limit;
    perf_cuda_limit_t *cuda_limit; /* NULL: without --memory cuda */
    perf_peer_t *peer;             /* NULL: without --peer */
    uint64_t iters;
    sample_t *samples; /* [STEPS][iters] of this rank */
    sample_t *all;     /* [R][STEPS][iters] */
    double *values;    /* [iters] */
    uint64_t rounds;   /* of the compute kernel that take --overlap */
} timing_t;

/* ---- running ---------------------------------------------------------------------- */

/* Limits do what operations do, without the library: no handles, no requests. */
static int is_limit(uint32_t kind)
{
    return kind == KIND_CACHED || kind == KIND_STREAMING;
}

static int is_peer(uint32_t kind)
{
    return kind == KIND_PEER_CACHED || kind == KIND_PEER_STREAMING;
}

/* A cached handle needs no plan, so the limit is not charged with one either. */
static xep_status_t run_limit(timing_t *timing, uint32_t step)
{
    const int streaming = step / PERF_OPS == KIND_STREAMING;

    if (timing->cuda_limit != NULL) perf_cuda_limit_run(timing->cuda_limit, (perf_op_t)(step % PERF_OPS));
    else if (step % PERF_OPS == PERF_DISPATCH)
        perf_limit_dispatch(timing->limit, !timing->perf->options.cached, streaming);
    else perf_limit_combine(timing->limit, streaming);
    return XEP_OK;
}

static xep_status_t run_peer(timing_t *timing, uint32_t step)
{
    const int streaming = step / PERF_OPS == KIND_PEER_STREAMING;

    if (step % PERF_OPS == PERF_DISPATCH) perf_peer_dispatch(timing->peer, streaming);
    else perf_peer_combine(timing->peer, streaming);
    return XEP_OK;
}

static xep_status_t run_step(timing_t *timing, uint32_t step)
{
    const uint32_t kind = step / PERF_OPS;

    if (is_limit(kind)) return run_limit(timing, step);
    if (is_peer(kind)) return run_peer(timing, step);
    return step % PERF_OPS == PERF_DISPATCH ? perf_dispatch(timing->perf) : perf_combine(timing->perf);
}

/* One step of all ranks, from a common start to a common end; a warm-up iteration leaves no sample. */
static xep_status_t run_timed(timing_t *timing, uint32_t step, int64_t iter)
{
    sample_t sample;
    xep_status_t status = xep_group_barrier(timing->perf->group);

    if (status != XEP_OK) return status;
    perf_waits_begin(timing->perf);
    sample.cpu = perf_clock_cpu_ns();
    sample.begin = perf_clock_ns();
    status = run_step(timing, step);
    sample.end = perf_clock_ns();
    sample.sent = timing->perf->sent_ns;
    sample.device = timing->perf->device_ns;
    sample.cpu = perf_clock_cpu_ns() - sample.cpu;
    if (iter >= 0) timing->samples[step * timing->iters + (uint64_t)iter] = sample;
    if (iter >= 0 && step < PERF_OPS) perf_waits_book(timing->perf, (perf_op_t)step);
    return status == XEP_OK ? xep_group_barrier(timing->perf->group) : status;
}

/* What is not timed still runs: a combine needs its dispatch, and experts that have written their outputs. */
static xep_status_t run_operations(timing_t *timing, uint32_t first, int64_t iter)
{
    perf_t *perf = timing->perf;
    xep_status_t status;

    perf->computing = first == KIND_OVERLAP * PERF_OPS ? timing->rounds : 0;
    perf->empty = first == KIND_EMPTY * PERF_OPS;
    status = perf_times_dispatch(&perf->options) ? run_timed(timing, first + PERF_DISPATCH, iter) : perf_dispatch(perf);
    if (status == XEP_OK && perf_times_combine(&perf->options)) {
        status = perf_experts(perf);
        if (status == XEP_OK) status = run_timed(timing, first + PERF_COMBINE, iter);
    }
    perf->computing = 0;
    perf->empty = 0;
    if (status == XEP_OK) perf_release(perf);
    return status;
}

/* Expert outputs are written before the combine, as for the operations, so that both find the same caches. */
static xep_status_t run_limits(timing_t *timing, uint32_t first, int64_t iter)
{
    xep_status_t status = XEP_OK;

    if (perf_times_dispatch(&timing->perf->options)) status = run_timed(timing, first + PERF_DISPATCH, iter);
    if (status != XEP_OK || !perf_times_combine(&timing->perf->options)) return status;
    if (timing->cuda_limit == NULL) perf_limit_experts(timing->limit);
    return run_timed(timing, first + PERF_COMBINE, iter);
}

/* A combine needs its dispatch here as well, timed or not. */
static xep_status_t run_peers(timing_t *timing, uint32_t first, int64_t iter)
{
    const perf_options_t *options = &timing->perf->options;
    xep_status_t status = run_timed(timing, first + PERF_DISPATCH, iter);

    if (status != XEP_OK || !perf_times_combine(options)) return status;
    perf_peer_experts(timing->peer);
    return run_timed(timing, first + PERF_COMBINE, iter);
}

static xep_status_t run_kind(timing_t *timing, uint32_t kind, int64_t iter)
{
    const perf_options_t *options = &timing->perf->options;

    if (kind == KIND_OVERLAP && timing->rounds == 0) return XEP_OK;
    if (kind == KIND_EMPTY && !options->fixed) return XEP_OK;
    if (is_limit(kind)) return run_limits(timing, kind * PERF_OPS, iter);
    if (!is_peer(kind)) return run_operations(timing, kind * PERF_OPS, iter);
    return timing->peer != NULL ? run_peers(timing, kind * PERF_OPS, iter) : XEP_OK;
}

/* Kinds take turns at being first: what a kind leaves in the caches is not always to the advantage of the same one. */
static xep_status_t run_iteration(timing_t *timing, uint64_t at)
{
    const int64_t iter = (int64_t)at - (int64_t)timing->perf->options.warmup;
    xep_status_t status = XEP_OK;

    for (uint32_t turn = 0; status == XEP_OK && turn < KINDS; turn++)
        status = run_kind(timing, (turn + (uint32_t)at) % KINDS, iter);
    return status;
}

/* Samples are exchanged once, at the end: nothing travels between two iterations but what is measured. */
static xep_status_t run_all(timing_t *timing)
{
    perf_t *perf = timing->perf;
    const uint64_t all = perf->options.warmup + timing->iters;
    xep_status_t status = XEP_OK;

    if (perf->options.cached) status = perf_open_base(perf);
    for (uint64_t at = 0; status == XEP_OK && at < all; at++) {
        perf_progress(perf, "iteration", at + 1, all);
        status = run_iteration(timing, at);
    }
    if (status != XEP_OK) return status;
    perf_progress_end(perf);
    xep_handle_release(perf->base);
    perf->base = NULL;
    return xep_group_allgather(perf->group, timing->samples, timing->all,
                               STEPS * timing->iters * sizeof *timing->samples);
}

/* ---- reckoning -------------------------------------------------------------------- */

static int compare_values(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* As the allgather has left them: rank by rank what each had in samples. */
static const sample_t *sample_of(const timing_t *timing, uint32_t rank, uint32_t step, uint64_t iter)
{
    return &timing->all[((uint64_t)rank * STEPS + step) * timing->iters + iter];
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Microseconds from the first begin to the last end, or of the slowest where clocks differ. */
static double span_of(const timing_t *timing, uint32_t step, uint64_t iter)
{
    uint64_t begin = UINT64_MAX, end = 0, longest = 0;

    for (uint32_t rank = 0; rank < timing->perf->info.nranks; rank++) {
        const sample_t *sample = sample_of(timing, rank, step, iter);
        if (sample->begin < begin) begin = sample->begin;
        end = larger(end, sample->end);
        longest = larger(longest, sample->end - sample->begin);
    }
    return (double)(timing->perf->one_clock ? end - begin : longest) / 1e3;
}

/* The slowest rank's send phase, and receive phase. */
static double send_of(const timing_t *timing, uint32_t step, uint64_t iter)
{
    uint64_t longest = 0;

    for (uint32_t rank = 0; rank < timing->perf->info.nranks; rank++) {
        const sample_t *sample = sample_of(timing, rank, step, iter);
        longest = larger(longest, sample->sent - sample->begin);
    }
    return (double)longest / 1e3;
}

/* Looked at with --split alone, where the two phases are calls of their own. */
static double receive_of(const timing_t *timing, uint32_t step, uint64_t iter)
{
    uint64_t longest = 0;

    for (uint32_t rank = 0; rank < timing->perf->info.nranks; rank++)
        longest = larger(longest, sample_of(timing, rank, step, iter)->end - sample_of(timing, rank, step, iter)->sent);
    return (double)longest / 1e3;
}

/* The longest of any rank, as its own device has counted it. */
static double device_of(const timing_t *timing, uint32_t step, uint64_t iter)
{
    uint64_t longest = 0;

    for (uint32_t rank = 0; rank < timing->perf->info.nranks; rank++)
        longest = larger(longest, sample_of(timing, rank, step, iter)->device);
    return (double)longest / 1e3;
}

/* Of all ranks together: waiting by spinning counts, as the core is not there for anything else. */
static double cpu_of(const timing_t *timing, uint32_t step, uint64_t iter)
{
    uint64_t sum = 0;

    for (uint32_t rank = 0; rank < timing->perf->info.nranks; rank++) sum += sample_of(timing, rank, step, iter)->cpu;
    return (double)sum / 1e3;
}

/* Into values, which each number reuses: percentile() is of whatever was sorted last. */
static void sort_values(const timing_t *timing, uint32_t step, double (*value_of)(const timing_t *, uint32_t, uint64_t))
{
    for (uint64_t iter = 0; iter < timing->iters; iter++) timing->values[iter] = value_of(timing, step, iter);
    qsort(timing->values, timing->iters, sizeof *timing->values, compare_values);
}

/* The value below which so many percent of the sorted ones are. */
static double percentile(const timing_t *timing, uint64_t percent)
{
    return timing->values[timing->iters * percent / 100];
}

static double median_of(const timing_t *timing, uint32_t step, double (*value_of)(const timing_t *, uint32_t, uint64_t))
{
    sort_values(timing, step, value_of);
    return percentile(timing, 50);
}

/* The faster of the two ways to store is the limit, and the peer, whichever it is on this machine. */
static void reckon_better(const timing_t *timing, perf_op_t op, uint32_t kind, double *us_p, double *cpu_p)
{
    const uint32_t cached = kind * PERF_OPS + op, streaming = (kind + 1) * PERF_OPS + op;
    const double with_cached = median_of(timing, cached, span_of);
    const double with_streaming = median_of(timing, streaming, span_of);

    *us_p = with_cached < with_streaming ? with_cached : with_streaming;
    *cpu_p = median_of(timing, with_cached < with_streaming ? cached : streaming, cpu_of);
}

/* Operations in flight share the time of their step. */
static void reckon(const timing_t *timing, perf_op_t op, perf_time_t *time_p)
{
    const double slots = (double)timing->perf->options.slots;
    perf_time_t time = {.timed = 1};

    sort_values(timing, op, span_of);
    time.p10 = percentile(timing, 10) / slots;
    time.median = percentile(timing, 50) / slots;
    time.p90 = percentile(timing, 90) / slots;
    time.p99 = percentile(timing, 99) / slots;
    time.cpu = median_of(timing, op, cpu_of) / slots;
    if (timing->cuda_limit != NULL) time.device = median_of(timing, op, device_of) / slots;
    if (timing->perf->options.split) {
        time.send = median_of(timing, op, send_of) / slots;
        time.receive = median_of(timing, op, receive_of) / slots;
    }
    if (timing->rounds) {
        time.overlapped = median_of(timing, KIND_OVERLAP * PERF_OPS + op, span_of) / slots;
        time.computed = (double)timing->perf->options.overlap / slots;
    }
    if (timing->perf->options.fixed) time.empty = median_of(timing, KIND_EMPTY * PERF_OPS + op, span_of) / slots;
    reckon_better(timing, op, KIND_CACHED, &time.limit, &time.limit_cpu);
    if (timing->peer != NULL) reckon_better(timing, op, KIND_PEER_CACHED, &time.peer, &time.peer_cpu);
    *time_p = time;
}

/* Rounds of the compute kernel that take so many microseconds: the quickest of a few tries. */
static uint64_t calibrate(uint64_t us)
{
    const uint64_t rounds = 4096;
    uint64_t quickest = UINT64_MAX;

    for (int try = 0; us && try < 20; try++) {
        const uint64_t begin = perf_clock_ns();
        perf_compute(rounds);
        const uint64_t took = perf_clock_ns() - begin;
        if (took < quickest) quickest = took;
    }
    return us ? us * 1000 * rounds / (quickest + 1) + 1 : 0;
}

/* Allocated here for all iterations, so that the loop allocates nothing. */
int perf_time(perf_t *perf, perf_times_t *times_p)
{
    timing_t timing = {.perf = perf, .iters = perf->options.iters};
    xep_status_t status;

    timing.samples = oracle_alloc(STEPS * timing.iters * sizeof *timing.samples);
    timing.all = oracle_alloc(STEPS * timing.iters * sizeof *timing.all * perf->info.nranks);
    timing.values = oracle_alloc(timing.iters * sizeof *timing.values);
    timing.limit = perf_limit_open(perf);
    timing.cuda_limit = perf_cuda_limit_open(perf);
    perf->timing = 1;
    timing.peer = perf->peer;
    timing.rounds = calibrate(perf->options.overlap);
    status = run_all(&timing);
    if (status == XEP_OK) status = perf_waits_gather(perf);
    if (status == XEP_OK && perf->options.fixed) status = perf_time_parts(perf, times_p);
    if (status == XEP_OK && perf_times_dispatch(&perf->options))
        reckon(&timing, PERF_DISPATCH, &times_p->op[PERF_DISPATCH]);
    if (status == XEP_OK && perf_times_combine(&perf->options))
        reckon(&timing, PERF_COMBINE, &times_p->op[PERF_COMBINE]);
    perf->timing = 0;
    perf_limit_close(timing.limit);
    if (status == XEP_OK) perf_cuda_limit_close(timing.cuda_limit);
    free(timing.samples);
    free(timing.all);
    free(timing.values);
    return status == XEP_OK ? 0 : perf_give_up(perf, status);
}

/* How much of the operation was done while something was computed between its phases. */
double perf_time_hidden(const perf_time_t *time)
{
    return time->median > 0 ? 100 * (time->median + time->computed - time->overlapped) / time->median : 0;
}

double perf_time_ratio(const perf_time_t *time)
{
    return time->limit > 0 ? time->median / time->limit : 0;
}
