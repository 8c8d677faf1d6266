/* SPDX-License-Identifier: BSD-3-Clause */

/** How long operations take, and the limit beside them. */
#ifndef PERF_TIME_H
#define PERF_TIME_H

#include "perf.h"

/** Microseconds of one operation over the iterations. */
typedef struct perf_time {
    int timed; /* else the rest is not set */
    double p10, median, p90, p99;
    double cpu;            /* of all ranks, median */
    double limit;          /* median of the better limit */
    double limit_cpu;      /* its processor time: what to compare where others use the machine, too */
    double peer, peer_cpu; /* --peer: likewise */
    double send, receive;  /* --split: the slowest rank's, median */
    double overlapped;     /* --overlap: with computing between them, median */
    double computed;       /* and what the computing takes alone */
    double device;         /* --memory cuda: on the stream of the slowest rank, median */
    /* --in-place, median: a dispatch that copies no rows; it and a read of all of them; the same read of copied ones */
    double in_place, in_place_cpu;
    double in_place_read, in_place_read_cpu;
    double read, read_cpu;
    double pieces; /* --recv-rows, median: of all pieces together, outputs of all but the last among the dispatch */
} perf_time_t;

typedef struct perf_times {
    perf_time_t op[PERF_OPS];
} perf_times_t;

/** Times all operations and limits: perf->times. Collective. */
void perf_time(perf_t *perf);

/** Median over limit; 0 where the limit is too short to measure. */
double perf_time_ratio(const perf_time_t *time);

/** Percent of the communication that --overlap hid behind the computing. */
double perf_time_hidden(const perf_time_t *time);

/* ---- perf_time_samples.c ---- */

/* What all iterations of all ranks took, and the figures that are made of it. */

/** One step of one rank in one iteration, in ns. */
typedef struct perf_sample {
    uint64_t begin, sent, end, cpu, device;
} perf_sample_t;

typedef struct perf_samples {
    perf_t *perf;
    uint32_t steps;
    uint64_t iters;
    perf_sample_t *own; /* [steps][iters] of this rank */
    perf_sample_t *all; /* [R][steps][iters], as an allgather leaves them */
    double *values;     /* [iters] scratch: what is sorted */
} perf_samples_t;

void perf_samples_open(perf_samples_t *samples, perf_t *perf, uint32_t steps);
void perf_samples_close(perf_samples_t *samples);

/** This rank's sample, to be set. */
static inline perf_sample_t *perf_sample_at(const perf_samples_t *samples, uint32_t step, uint64_t iter)
{
    return &samples->own[step * samples->iters + iter];
}

/** When all are set: every rank gets those of all. Collective. */
void perf_samples_gather(perf_samples_t *samples);

/**
 * A figure of one iteration of a step: from the first begin to the last end, or of the slowest where clocks differ; the
 * slowest rank's send phase, and receive phase; the longest that any rank's device has counted; processor time of all
 * ranks together: waiting by spinning counts, as the core is not there for anything else.
 */
typedef enum { PERF_SPAN, PERF_SEND, PERF_RECEIVE, PERF_DEVICE, PERF_CPU } perf_figure_t;

/** The value, in us, below which so many percent of a figure's are. */
double perf_samples_percentile(perf_samples_t *samples, uint32_t step, perf_figure_t figure, uint64_t percent);

/* --waits: for whom ranks waited. Without it open, begin, book and gather do nothing. */

void perf_waits_open(perf_t *perf);
void perf_waits_close(perf_t *perf);

/** A step begins; it was an iteration of this operation. */
void perf_waits_begin(perf_t *perf);
void perf_waits_book(perf_t *perf, perf_op_t op);

/** Every rank gets those of all. Collective. */
void perf_waits_gather(perf_t *perf);

/** What the others waited for a rank, in microseconds of one operation. */
typedef struct perf_late {
    double mean, max;
    double percent; /* of the operations */
} perf_late_t;

void perf_waits_late(const perf_t *perf, perf_op_t op, uint32_t late, perf_late_t *late_p);

/** What one rank waited for another, on average. */
double perf_waits_mean(const perf_t *perf, perf_op_t op, uint32_t waiting, uint32_t late);

#endif
