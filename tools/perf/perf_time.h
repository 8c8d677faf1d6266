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
    double empty;          /* --fixed: without tokens, median */
    double device;         /* --memory cuda: on the stream of the slowest rank, median */
} perf_time_t;

typedef struct perf_times {
    perf_time_t op[PERF_OPS];
    double round_trip; /* --fixed: of a flag between ranks 0 and 1; 0: not measured */
    double layout;     /* --fixed: xep_layout() of the tokens of a rank */
    /* --in-place, median: a dispatch that copies no rows; it and a read of all of them; the same read of copied ones */
    double in_place, in_place_cpu;
    double in_place_read, in_place_read_cpu;
    double read, read_cpu;
    double pieces[PERF_OPS]; /* --recv-rows, median: of all pieces together, outputs of all but the last among them */
} perf_times_t;

/** Times all operations and limits. 0 or the exit status. Collective. */
int perf_time(perf_t *perf, perf_times_t *times_p);

/** Median over limit; 0 where the limit is too short to measure. */
double perf_time_ratio(const perf_time_t *time);

/** Percent of the communication that --overlap hid behind the computing. */
double perf_time_hidden(const perf_time_t *time);

/* ---- perf_time_fixed.c ---- */

/* What an operation costs besides its bytes. */

/** Times flags and the layout, as perf_times_t has them; *round_trip_p stays where none is measured. Collective. */
xep_status_t perf_fixed_parts(perf_t *perf, double *round_trip_p, double *layout_p);

#endif
