/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Times operations and limits, iteration by iteration in one loop, so that both see the
 * same machine; what comes first changes from iteration to iteration. Each step starts at
 * a barrier of the group and ends at one: with more ranks than cores, what the first to end does
 * next would take the core of the last (4 ranks on 2 cores: 4.8 ms in place of 2.2).
 */

#include "perf_time.h"

#include <stdlib.h>
#include <string.h>

#include "oracle_alloc.h"
#include "perf_by_hand.h"
#include "perf_machine.h"
#include "perf_ops.h"
#include "perf_say.h"

/* The ways to do both operations that are timed in turn. The two of the limit, and of the peer, are not neighbours, as
 * the second would find in the caches what the first has left. For the limit of devices streaming means that it copies
 * to one peer after the other. */
enum {
    OPS,
    LIMIT,
    PEER,
    LIMIT_STREAMING,
    PEER_STREAMING,
    OVERLAP,
    READ,
    IN_PLACE,
    IN_PLACE_READ,
    PIECES,
    LAYER,
    LAYER_EVEN,
    WAYS,
    STEPS = WAYS * PERF_OPS
};

/** The steps of a way; those that are not timed are NULL where there is nothing to do. */
typedef struct way {
    void (*before)(perf_t *perf);
    void (*dispatch)(perf_t *perf); /* timed */
    void (*experts)(perf_t *perf);  /* outputs are written, also for limits, so that all find the same caches */
    void (*combine)(perf_t *perf);  /* timed; NULL: dispatches alone */
    void (*release)(perf_t *perf);
    int streaming, computes, in_place; /* set in perf while they run */
} way_t;

#define OPERATIONS .dispatch = perf_dispatch, .experts = perf_experts, .combine = perf_combine, .release = perf_release
#define THE_LIMIT  .dispatch = perf_limit_dispatch, .experts = perf_limit_experts, .combine = perf_limit_combine
#define THE_PEER   .dispatch = perf_peer_dispatch, .experts = perf_peer_experts, .combine = perf_peer_combine

static const way_t ways[WAYS] = {
    [OPS] = {OPERATIONS},
    [LIMIT] = {THE_LIMIT},
    [PEER] = {THE_PEER},
    [LIMIT_STREAMING] = {THE_LIMIT, .streaming = 1},
    [PEER_STREAMING] = {THE_PEER, .streaming = 1},
    [OVERLAP] = {OPERATIONS, .computes = 1},
    [READ] = {.before = perf_in_place_rows, .dispatch = perf_in_place_read, .release = perf_release},
    [IN_PLACE] = {.before = perf_in_place_rows, .dispatch = perf_dispatch, .release = perf_release, .in_place = 1},
    [IN_PLACE_READ] = {.before = perf_in_place_rows,
                       .dispatch = perf_in_place_read,
                       .release = perf_release,
                       .in_place = 1},
    [PIECES] = {.dispatch = perf_pieces_dispatch,
                .experts = perf_experts,
                .combine = perf_combine,
                .release = perf_release},
    [LAYER] = {.dispatch = perf_layer_at_owners},
    [LAYER_EVEN] = {.dispatch = perf_layer_even},
};

/** One step of one rank in one iteration, in ns. */
typedef struct sample {
    uint64_t begin, sent, end, cpu, device;
} sample_t;

typedef struct timing {
    perf_t *perf;
    uint64_t rounds; /* of the compute kernel that take --overlap */
    sample_t *own;   /* [STEPS][iters] of this rank */
    sample_t *all;   /* [R][STEPS][iters], as an allgather leaves them */
    double *values;  /* [iters] scratch: what is sorted */
} timing_t;

/* All ranks have the same options, so they leave out the same ways. */
static int is_timed(const perf_options_t *options, uint32_t way)
{
    const int asked[WAYS] = {[OPS] = 1,
                             [LIMIT] = 1,
                             [PEER] = options->peer,
                             [LIMIT_STREAMING] = 1,
                             [PEER_STREAMING] = options->peer,
                             [OVERLAP] = options->overlap != 0,
                             [READ] = options->in_place,
                             [IN_PLACE] = options->in_place,
                             [IN_PLACE_READ] = options->in_place,
                             [PIECES] = options->recv_rows != 0,
                             [LAYER] = options->balance != 0,
                             [LAYER_EVEN] = options->balance != 0};

    return asked[way];
}

/* ---- running ---------------------------------------------------------------------- */

/*
 * One step of all ranks, from a common start to a common end; a warm-up iteration, whose number is negative, leaves no
 * sample. The processor time is read around the other clock, so that reading it is not in the span.
 */
static void run_timed(timing_t *timing, uint32_t way, perf_op_t op, int64_t iter)
{
    perf_t *perf = timing->perf;
    sample_t sample;

    perf_must(perf, xep_group_barrier(perf->group));
    if (perf->wait_ns != NULL) memset(perf->wait_ns, 0, perf->info.nranks * sizeof *perf->wait_ns);
    sample.cpu = perf_clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    sample.begin = perf_clock_ns(CLOCK_MONOTONIC);
    if (op == PERF_DISPATCH) ways[way].dispatch(perf);
    else ways[way].combine(perf);
    sample.end = perf_clock_ns(CLOCK_MONOTONIC);
    sample.sent = perf->sent_ns;
    sample.device = perf->device_ns;
    sample.cpu = perf_clock_ns(CLOCK_PROCESS_CPUTIME_ID) - sample.cpu;
    if (iter >= 0) timing->own[(way * PERF_OPS + op) * perf->options.iters + (uint64_t)iter] = sample;
    if (iter >= 0 && way == OPS) perf_waits_book(perf, op);
    perf_must(perf, xep_group_barrier(perf->group));
}

/* What is set for the steps of a way is taken back. A combine needs its dispatch, also where --op leaves that out. */
static void run_way(timing_t *timing, uint32_t at, int64_t iter)
{
    const way_t *way = &ways[at];
    perf_t *perf = timing->perf;
    const int combines = way->combine != NULL && perf_times_combine(&perf->options);

    perf->computing = way->computes ? timing->rounds : 0;
    perf->streaming = way->streaming;
    perf->in_place = way->in_place;
    if (way->before != NULL) way->before(perf);
    run_timed(timing, at, PERF_DISPATCH, iter);
    if (combines) way->experts(perf);
    if (combines) run_timed(timing, at, PERF_COMBINE, iter);
    if (way->release != NULL) way->release(perf);
    perf->computing = 0;
    perf->streaming = perf->in_place = 0;
    perf->sends = NULL;
}

/* Ways take turns at being first: what one leaves in the caches is not always to the advantage of the same one. */
static void run_iteration(timing_t *timing, uint64_t at)
{
    const int64_t iter = (int64_t)at - (int64_t)timing->perf->options.warmup;

    for (uint32_t turn = 0; turn < WAYS; turn++) {
        const uint32_t way = (turn + (uint32_t)at) % WAYS;
        if (is_timed(&timing->perf->options, way)) run_way(timing, way, iter);
    }
}

/* Samples are exchanged once, at the end: nothing travels between two iterations but what is measured. */
static void run_all(timing_t *timing)
{
    perf_t *perf = timing->perf;
    const uint64_t all = perf->options.warmup + perf->options.iters;

    if (perf->options.cached) perf_open_base(perf);
    for (uint64_t at = 0; at < all; at++) {
        perf_progress(perf, "iteration", at + 1, all);
        run_iteration(timing, at);
    }
    xep_handle_release(perf->base);
    perf->base = NULL;
    timing->all = perf_gather(perf, timing->own, STEPS * perf->options.iters * sizeof *timing->own);
}

/* ---- reckoning -------------------------------------------------------------------- */

/**
 * A figure of one iteration of a step: from the first begin to the last end, or of the slowest where clocks differ; the
 * slowest rank's send phase, and receive phase; the longest that any rank's device has counted; processor time of all
 * ranks together: waiting by spinning counts, as the core is not there for anything else.
 */
typedef enum { SPAN, SEND, RECEIVE, DEVICE, CPU } figure_t;

/*
 * A figure of one iteration, in us. Where all ranks share a clock, a span lasts from the first begin to the last end;
 * else it is the longest span of a rank, as clocks of several hosts cannot be compared. All other figures are
 * made of differences between times of one rank.
 */
static double value_of(const timing_t *timing, uint32_t step, uint64_t iter, figure_t figure)
{
    uint64_t begin = UINT64_MAX, end = 0, longest = 0, sum = 0;

    for (uint32_t rank = 0; rank < timing->perf->info.nranks; rank++) {
        const sample_t *sample = &timing->all[((uint64_t)rank * STEPS + step) * timing->perf->options.iters + iter];
        const uint64_t values[] = {[SPAN] = sample->end - sample->begin,
                                   [SEND] = sample->sent - sample->begin,
                                   [RECEIVE] = sample->end - sample->sent,
                                   [DEVICE] = sample->device,
                                   [CPU] = sample->cpu};
        if (sample->begin < begin) begin = sample->begin;
        if (sample->end > end) end = sample->end;
        if (values[figure] > longest) longest = values[figure];
        sum += values[figure];
    }
    if (figure == SPAN && timing->perf->one_clock) longest = end - begin;
    return (double)(figure == CPU ? sum : longest) / 1e3;
}

static int compare_values(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* A value that was measured, none between two: of 20 iterations p99 is the slowest. */
static double percentile(timing_t *timing, uint32_t step, figure_t figure, uint64_t percent)
{
    const uint64_t iters = timing->perf->options.iters;

    for (uint64_t iter = 0; iter < iters; iter++) timing->values[iter] = value_of(timing, step, iter, figure);
    qsort(timing->values, iters, sizeof *timing->values, compare_values);
    return timing->values[iters * percent / 100];
}

/** A field of perf_time_t that is a percentile of what a way took. */
typedef struct reckoned {
    size_t offset;
    uint32_t way;
    figure_t figure;
    uint64_t percent;
} reckoned_t;

#define AT(_field) offsetof(perf_time_t, _field)

static const reckoned_t reckoned[] = {
    {AT(p10), OPS, SPAN, 10},
    {AT(median), OPS, SPAN, 50},
    {AT(p90), OPS, SPAN, 90},
    {AT(p99), OPS, SPAN, 99},
    {AT(cpu), OPS, CPU, 50},
    {AT(device), OPS, DEVICE, 50},
    {AT(send), OPS, SEND, 50},
    {AT(receive), OPS, RECEIVE, 50},
    {AT(overlapped), OVERLAP, SPAN, 50},
    {AT(read), READ, SPAN, 50},
    {AT(read_cpu), READ, CPU, 50},
    {AT(in_place), IN_PLACE, SPAN, 50},
    {AT(in_place_cpu), IN_PLACE, CPU, 50},
    {AT(in_place_read), IN_PLACE_READ, SPAN, 50},
    {AT(in_place_read_cpu), IN_PLACE_READ, CPU, 50},
    {AT(pieces), PIECES, SPAN, 50},
    {AT(layer[0]), LAYER, SPAN, 50},
    {AT(layer[1]), LAYER_EVEN, SPAN, 50},
    {AT(experts[0]), LAYER, DEVICE, 50},
    {AT(experts[1]), LAYER_EVEN, DEVICE, 50},
};

/* The faster of the two ways to store is the limit, and the peer, whichever it is on this machine. */
static void reckon_better(timing_t *timing, perf_op_t op, uint32_t way, uint32_t other, uint64_t percent, double *us_p,
                          double *cpu_p)
{
    const uint32_t cached = way * PERF_OPS + op, streaming = other * PERF_OPS + op;
    const double with_cached = percentile(timing, cached, SPAN, percent);
    const double with_streaming = percentile(timing, streaming, SPAN, percent);
    const int is_cached = with_cached < with_streaming;

    *us_p = is_cached ? with_cached : with_streaming;
    *cpu_p = percentile(timing, is_cached ? cached : streaming, CPU, percent);
}

/*
 * Operations in flight share the time of their step. Of a limit the least of all iterations: what the machine can do it
 * has done once.
 */
static void reckon(timing_t *timing, perf_op_t op)
{
    perf_time_t *time = &timing->perf->times[op];
    const perf_options_t *options = &timing->perf->options;
    const double slots = (double)options->slots;

    time->timed = 1;
    for (size_t i = 0; i < sizeof reckoned / sizeof *reckoned; i++)
        if (is_timed(options, reckoned[i].way))
            *(double *)(void *)((char *)time + reckoned[i].offset) =
                percentile(timing, reckoned[i].way * PERF_OPS + op, reckoned[i].figure, reckoned[i].percent) / slots;
    time->computed = (double)options->overlap / slots;
    reckon_better(timing, op, LIMIT, LIMIT_STREAMING, 0, &time->limit, &time->limit_cpu);
    if (options->peer) reckon_better(timing, op, PEER, PEER_STREAMING, 50, &time->peer, &time->peer_cpu);
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
        const uint64_t begin = perf_clock_ns(CLOCK_MONOTONIC);
        perf_compute(rounds);
        const uint64_t took = perf_clock_ns(CLOCK_MONOTONIC) - begin;
        if (took < quickest) quickest = took;
    }
    return us ? us * 1000 * rounds / (quickest + 1) + 1 : 0;
}

/* Allocated here for all iterations, so that the loop allocates nothing. */
void perf_time(perf_t *perf)
{
    timing_t timing = {.perf = perf, .rounds = calibrate(perf->options.overlap)};

    timing.own = oracle_alloc(STEPS * perf->options.iters * sizeof *timing.own);
    timing.values = oracle_alloc(perf->options.iters * sizeof *timing.values);
    perf_waits_open(perf);
    perf_limit_open(perf);
    perf->timing = 1;
    run_all(&timing);
    perf_waits_gather(perf);
    if (perf_times_dispatch(&perf->options)) reckon(&timing, PERF_DISPATCH);
    if (perf_times_combine(&perf->options)) reckon(&timing, PERF_COMBINE);
    perf->timing = 0;
    perf_limit_close(perf);
    free(timing.own);
    free(timing.all);
    free(timing.values);
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
