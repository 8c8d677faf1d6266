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
    double layer[2], experts[2]; /* --balance, median: a layer, processor time of its experts; [1]: balanced */
} perf_time_t;

/** Times all operations and limits: perf->times. Collective. */
void perf_time(perf_t *perf);

/** Median over limit; 0 where the limit is too short to measure. */
double perf_time_ratio(const perf_time_t *time);

/** Percent of the communication that --overlap hid behind the computing. */
double perf_time_hidden(const perf_time_t *time);

/* ---- perf_time_waits.c ---- */

/* --waits: how long each rank waited for each other one. Without --waits open, book and gather do nothing. */

void perf_waits_open(perf_t *perf);

/** A step of this operation has ended. */
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
