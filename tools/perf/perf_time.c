/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Times operations and limits, iteration by iteration in one loop, so that both see the
 * same machine; what comes first changes from iteration to iteration. Each step starts at
 * a barrier of the group and ends at one: with more ranks than cores, what the first to end does
 * next would take the core of the last (4 ranks on 2 cores: 4.8 ms in place of 2.2).
 */

#include "perf_time.h"

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
                .experts = perf_pieces_experts,
                .combine = perf_pieces_combine,
                .release = perf_pieces_release},
};

typedef struct timing {
    perf_t *perf;
    perf_samples_t samples;
    uint64_t rounds; /* of the compute kernel that take --overlap */
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
                             [PIECES] = options->recv_rows != 0};

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
    perf_sample_t sample;

    perf_must(perf, xep_group_barrier(perf->group));
    perf_waits_begin(perf);
    sample.cpu = perf_clock_cpu_ns();
    sample.begin = perf_clock_ns();
    if (op == PERF_DISPATCH) ways[way].dispatch(perf);
    else ways[way].combine(perf);
    sample.end = perf_clock_ns();
    sample.sent = perf->sent_ns;
    sample.device = perf->device_ns;
    sample.cpu = perf_clock_cpu_ns() - sample.cpu;
    if (iter >= 0) *perf_sample_at(&timing->samples, way * PERF_OPS + op, (uint64_t)iter) = sample;
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
    perf_progress_end(perf);
    xep_handle_release(perf->base);
    perf->base = NULL;
    perf_samples_gather(&timing->samples);
}

/* ---- reckoning -------------------------------------------------------------------- */

/** A field of perf_time_t that is a percentile of what a way took. */
typedef struct reckoned {
    size_t offset;
    uint32_t way;
    perf_figure_t figure;
    uint64_t percent;
} reckoned_t;

#define AT(_field) offsetof(perf_time_t, _field)

static const reckoned_t reckoned[] = {
    {AT(p10), OPS, PERF_SPAN, 10},
    {AT(median), OPS, PERF_SPAN, 50},
    {AT(p90), OPS, PERF_SPAN, 90},
    {AT(p99), OPS, PERF_SPAN, 99},
    {AT(cpu), OPS, PERF_CPU, 50},
    {AT(device), OPS, PERF_DEVICE, 50},
    {AT(send), OPS, PERF_SEND, 50},
    {AT(receive), OPS, PERF_RECEIVE, 50},
    {AT(overlapped), OVERLAP, PERF_SPAN, 50},
    {AT(read), READ, PERF_SPAN, 50},
    {AT(read_cpu), READ, PERF_CPU, 50},
    {AT(in_place), IN_PLACE, PERF_SPAN, 50},
    {AT(in_place_cpu), IN_PLACE, PERF_CPU, 50},
    {AT(in_place_read), IN_PLACE_READ, PERF_SPAN, 50},
    {AT(in_place_read_cpu), IN_PLACE_READ, PERF_CPU, 50},
    {AT(pieces), PIECES, PERF_SPAN, 50},
};

/* The faster of the two ways to store is the limit, and the peer, whichever it is on this machine. */
static void reckon_better(timing_t *timing, perf_op_t op, uint32_t way, uint32_t other, uint64_t percent, double *us_p,
                          double *cpu_p)
{
    const uint32_t cached = way * PERF_OPS + op, streaming = other * PERF_OPS + op;
    const double with_cached = perf_samples_percentile(&timing->samples, cached, PERF_SPAN, percent);
    const double with_streaming = perf_samples_percentile(&timing->samples, streaming, PERF_SPAN, percent);
    const int is_cached = with_cached < with_streaming;

    *us_p = is_cached ? with_cached : with_streaming;
    *cpu_p = perf_samples_percentile(&timing->samples, is_cached ? cached : streaming, PERF_CPU, percent);
}

/*
 * Operations in flight share the time of their step. Of a limit the least of all iterations: what the machine can do it
 * has done once.
 */
static void reckon(timing_t *timing, perf_op_t op)
{
    perf_time_t *time = &timing->perf->times->op[op];
    const perf_options_t *options = &timing->perf->options;
    const double slots = (double)options->slots;

    time->timed = 1;
    for (size_t i = 0; i < sizeof reckoned / sizeof *reckoned; i++)
        if (is_timed(options, reckoned[i].way))
            *(double *)(void *)((char *)time + reckoned[i].offset) =
                perf_samples_percentile(&timing->samples, reckoned[i].way * PERF_OPS + op, reckoned[i].figure,
                                        reckoned[i].percent) /
                slots;
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
        const uint64_t begin = perf_clock_ns();
        perf_compute(rounds);
        const uint64_t took = perf_clock_ns() - begin;
        if (took < quickest) quickest = took;
    }
    return us ? us * 1000 * rounds / (quickest + 1) + 1 : 0;
}

/* Allocated here for all iterations, so that the loop allocates nothing. */
void perf_time(perf_t *perf)
{
    timing_t timing = {.perf = perf, .rounds = calibrate(perf->options.overlap)};

    perf_samples_open(&timing.samples, perf, STEPS);
    perf_limit_open(perf);
    perf->timing = 1;
    run_all(&timing);
    perf_waits_gather(perf);
    if (perf_times_dispatch(&perf->options)) reckon(&timing, PERF_DISPATCH);
    if (perf_times_combine(&perf->options)) reckon(&timing, PERF_COMBINE);
    perf->timing = 0;
    perf_limit_close(perf);
    perf_samples_close(&timing.samples);
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
