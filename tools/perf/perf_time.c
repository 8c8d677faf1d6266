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
#include "perf_cuda.h"
#include "perf_cuda_limit.h"
#include "perf_limit.h"
#include "perf_machine.h"
#include "perf_ops.h"
#include "perf_peer.h"
#include "perf_pieces.h"
#include "perf_samples.h"
#include "perf_say.h"
#include "perf_waits.h"

/* The steps timed: the operations, the limit and the peer with cached and with streaming stores (the limit of devices:
 * to all peers at once by kernels, and one after the other by copy engines; the two of either are not neighbours, as
 * the second would find in the caches what the first has left), the operations with computing between their phases,
 * those without tokens, and dispatches whose rows are read: copied ones, and in place, not read and read; and the
 * operations with rows that come in pieces. */
enum {
    KIND_OPS,
    KIND_CACHED,
    KIND_PEER_CACHED,
    KIND_STREAMING,
    KIND_PEER_STREAMING,
    KIND_OVERLAP,
    KIND_EMPTY,
    KIND_READ,
    KIND_IN_PLACE,
    KIND_IN_PLACE_READ,
    KIND_PIECES,
    KINDS,
    STEPS = KINDS * PERF_OPS
};

typedef struct timing {
    perf_t *perf;
    perf_limit_t *limit;
    perf_cuda_limit_t *cuda_limit; /* NULL: without --memory cuda */
    perf_peer_t *peer;             /* NULL: without --peer */
    uint64_t iters;
    perf_sample_t *samples; /* [STEPS][iters] of this rank */
    perf_samples_t all;     /* of all ranks */
    uint64_t rounds;        /* of the compute kernel that take --overlap */
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

static int is_in_place(uint32_t kind)
{
    return kind >= KIND_READ && kind <= KIND_IN_PLACE_READ;
}

/*
 * Step: kind * PERF_OPS + operation. Of what is timed only the library's own operations can fail. A cached handle needs
 * no plan, so the limit is not charged with one either.
 */
static xep_status_t run_step(timing_t *timing, uint32_t step)
{
    const uint32_t kind = step / PERF_OPS, is_dispatch = step % PERF_OPS == PERF_DISPATCH;
    const int streaming = kind == KIND_STREAMING || kind == KIND_PEER_STREAMING;
    perf_t *perf = timing->perf;

    if (kind == KIND_READ || kind == KIND_IN_PLACE_READ) return perf_in_place_read(perf);
    if (kind == KIND_PIECES) return is_dispatch ? perf_pieces_dispatch(perf) : perf_pieces_combine(perf);
    if (!is_limit(kind) && !is_peer(kind)) return is_dispatch ? perf_dispatch(perf) : perf_combine(perf);
    if (is_peer(kind) && is_dispatch) perf_peer_dispatch(timing->peer, streaming);
    else if (is_peer(kind)) perf_peer_combine(timing->peer, streaming);
    else if (timing->cuda_limit != NULL)
        perf_cuda_limit_run(timing->cuda_limit, (perf_op_t)(step % PERF_OPS), streaming);
    else if (is_dispatch) perf_limit_dispatch(timing->limit, !perf->options.cached, streaming);
    else perf_limit_combine(timing->limit, streaming);
    return XEP_OK;
}

/*
 * One step of all ranks, from a common start to a common end; a warm-up iteration, whose number is negative, leaves no
 * sample. The processor time is read around the other clock, so that reading it is not in the span.
 */
static xep_status_t run_timed(timing_t *timing, uint32_t step, int64_t iter)
{
    perf_sample_t sample;
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

/* All ranks have the same options, so they leave out the same kinds. */
static int is_timed(const timing_t *timing, uint32_t kind)
{
    if (kind == KIND_OVERLAP) return timing->rounds != 0;
    if (kind == KIND_EMPTY) return timing->perf->options.fixed;
    if (kind == KIND_PIECES) return timing->perf->pieces != NULL;
    if (is_in_place(kind)) return timing->perf->options.in_place;
    return !is_peer(kind) || timing->peer != NULL;
}

/* Expert outputs are written before the combine, also for the limits, so that all find the same caches. */
static xep_status_t run_experts(timing_t *timing, uint32_t kind)
{
    if (kind == KIND_PIECES) return perf_pieces_experts(timing->perf);
    if (is_peer(kind)) perf_peer_experts(timing->peer);
    else if (!is_limit(kind)) return perf_experts(timing->perf);
    else if (timing->cuda_limit == NULL) perf_limit_experts(timing->limit);
    return XEP_OK;
}

/*
 * A combine needs its dispatch, also where --op leaves that out. Those that are read, or lie in place, are dispatches
 * alone, and all of their rows come from the same memory.
 */
static xep_status_t run_kind(timing_t *timing, uint32_t kind, int64_t iter)
{
    perf_t *perf = timing->perf;
    const int combines = perf_times_combine(&perf->options) && !is_in_place(kind);
    xep_status_t status = is_in_place(kind) ? perf_in_place_rows(perf) : XEP_OK;

    perf->computing = kind == KIND_OVERLAP ? timing->rounds : 0;
    perf->empty = kind == KIND_EMPTY;
    perf->in_place = is_in_place(kind) && kind != KIND_READ;
    if (status == XEP_OK) status = run_timed(timing, kind * PERF_OPS + PERF_DISPATCH, iter);
    if (status == XEP_OK && combines) status = run_experts(timing, kind);
    if (status == XEP_OK && combines) status = run_timed(timing, kind * PERF_OPS + PERF_COMBINE, iter);
    perf->computing = 0;
    perf->empty = perf->in_place = 0;
    perf->sends = NULL;
    if (status != XEP_OK || is_limit(kind) || is_peer(kind)) return status;
    if (kind == KIND_PIECES) perf_pieces_release(perf);
    else perf_release(perf);
    return XEP_OK;
}

/* Kinds take turns at being first: what a kind leaves in the caches is not always to the advantage of the same one. */
static xep_status_t run_iteration(timing_t *timing, uint64_t at)
{
    const int64_t iter = (int64_t)at - (int64_t)timing->perf->options.warmup;
    xep_status_t status = XEP_OK;

    for (uint32_t turn = 0; status == XEP_OK && turn < KINDS; turn++) {
        const uint32_t kind = (turn + (uint32_t)at) % KINDS;
        if (is_timed(timing, kind)) status = run_kind(timing, kind, iter);
    }
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
    return xep_group_allgather(perf->group, timing->samples, timing->all.samples,
                               STEPS * timing->iters * sizeof *timing->samples);
}

/* ---- reckoning -------------------------------------------------------------------- */

static double median(timing_t *timing, uint32_t kind, perf_op_t op, perf_figure_t figure)
{
    return perf_samples_percentile(&timing->all, kind * PERF_OPS + op, figure, 50);
}

/*
 * The faster of the two ways to store is the limit, and the peer, whichever it is on this machine. Of a limit the least
 * of all iterations: what the machine can do it has done once.
 */
static void reckon_better(timing_t *timing, perf_op_t op, uint32_t kind, uint32_t other, double *us_p, double *cpu_p)
{
    const uint64_t percent = is_limit(kind) ? 0 : 50;
    const uint32_t cached = kind * PERF_OPS + op, streaming = other * PERF_OPS + op;
    const double with_cached = perf_samples_percentile(&timing->all, cached, PERF_SPAN, percent);
    const double with_streaming = perf_samples_percentile(&timing->all, streaming, PERF_SPAN, percent);

    *us_p = with_cached < with_streaming ? with_cached : with_streaming;
    *cpu_p =
        perf_samples_percentile(&timing->all, with_cached < with_streaming ? cached : streaming, PERF_CPU, percent);
}

/* Operations in flight share the time of their step. */
static void reckon(timing_t *timing, perf_op_t op, perf_time_t *time_p)
{
    const perf_options_t *options = &timing->perf->options;
    const double slots = (double)options->slots;
    perf_time_t time = {.timed = 1};

    time.p10 = perf_samples_percentile(&timing->all, op, PERF_SPAN, 10) / slots;
    time.median = perf_samples_percentile(&timing->all, op, PERF_SPAN, 50) / slots;
    time.p90 = perf_samples_percentile(&timing->all, op, PERF_SPAN, 90) / slots;
    time.p99 = perf_samples_percentile(&timing->all, op, PERF_SPAN, 99) / slots;
    time.cpu = median(timing, KIND_OPS, op, PERF_CPU) / slots;
    if (timing->cuda_limit != NULL) time.device = median(timing, KIND_OPS, op, PERF_DEVICE) / slots;
    if (options->split) time.send = median(timing, KIND_OPS, op, PERF_SEND) / slots;
    if (options->split) time.receive = median(timing, KIND_OPS, op, PERF_RECEIVE) / slots;
    if (timing->rounds) time.overlapped = median(timing, KIND_OVERLAP, op, PERF_SPAN) / slots;
    if (timing->rounds) time.computed = (double)options->overlap / slots;
    if (options->fixed) time.empty = median(timing, KIND_EMPTY, op, PERF_SPAN) / slots;
    reckon_better(timing, op, KIND_CACHED, KIND_STREAMING, &time.limit, &time.limit_cpu);
    if (timing->peer != NULL)
        reckon_better(timing, op, KIND_PEER_CACHED, KIND_PEER_STREAMING, &time.peer, &time.peer_cpu);
    *time_p = time;
}

/* Of all of them. What has no percentiles is of one slot, so there is nothing to divide by. */
static void reckon_all(timing_t *timing, perf_times_t *times_p)
{
    const perf_t *perf = timing->perf;

    if (perf_times_dispatch(&perf->options)) reckon(timing, PERF_DISPATCH, &times_p->op[PERF_DISPATCH]);
    if (perf_times_combine(&perf->options)) reckon(timing, PERF_COMBINE, &times_p->op[PERF_COMBINE]);
    if (perf->options.in_place) {
        times_p->read = median(timing, KIND_READ, PERF_DISPATCH, PERF_SPAN);
        times_p->read_cpu = median(timing, KIND_READ, PERF_DISPATCH, PERF_CPU);
        times_p->in_place = median(timing, KIND_IN_PLACE, PERF_DISPATCH, PERF_SPAN);
        times_p->in_place_cpu = median(timing, KIND_IN_PLACE, PERF_DISPATCH, PERF_CPU);
        times_p->in_place_read = median(timing, KIND_IN_PLACE_READ, PERF_DISPATCH, PERF_SPAN);
        times_p->in_place_read_cpu = median(timing, KIND_IN_PLACE_READ, PERF_DISPATCH, PERF_CPU);
    }
    for (perf_op_t op = PERF_DISPATCH; perf->pieces != NULL && op < PERF_OPS; op++)
        times_p->pieces[op] = median(timing, KIND_PIECES, op, PERF_SPAN);
}

/*
 * Rounds of the compute kernel that take so many microseconds: the quickest of a few tries, as one that was interrupted
 * would make them too few. One is added on both sides: against a division by 0, and for 0 to mean that nothing is
 * computed.
 */
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

/*
 * Allocated here for all iterations, so that the loop allocates nothing. After an error the limit of devices stays
 * open: to close it is collective, and the other ranks may not come.
 */
int perf_time(perf_t *perf, perf_times_t *times_p)
{
    timing_t timing = {.perf = perf, .iters = perf->options.iters};
    xep_status_t status;

    timing.samples = oracle_alloc(STEPS * timing.iters * sizeof *timing.samples);
    perf_samples_open(&timing.all, perf, STEPS);
    timing.limit = perf_limit_open(perf);
    timing.cuda_limit = perf_cuda_limit_open(perf);
    perf->timing = 1;
    timing.peer = perf->peer;
    timing.rounds = calibrate(perf->options.overlap);
    status = run_all(&timing);
    if (status == XEP_OK) status = perf_waits_gather(perf);
    if (status == XEP_OK && perf->options.fixed)
        status = perf_fixed_parts(perf, &times_p->round_trip, &times_p->layout);
    if (status == XEP_OK) reckon_all(&timing, times_p);
    perf->timing = 0;
    perf_limit_close(timing.limit);
    if (status == XEP_OK) perf_cuda_limit_close(timing.cuda_limit);
    free(timing.samples);
    perf_samples_close(&timing.all);
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
