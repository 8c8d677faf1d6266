/* SPDX-License-Identifier: BSD-3-Clause */

/** One run of xep_perf on this rank: what its parts share. */
#ifndef PERF_H
#define PERF_H

#include <stddef.h>
#include <stdint.h>

#include <xep/xep.h>

#include "perf_options.h"
#include "tool_oracle.h"

enum { PERF_EXIT_FAILED = 1, PERF_EXIT_USAGE = 2 };

/** Private memory of a rank, one piece, carved once. */
typedef struct perf_memory {
    void *base;
    size_t bytes;
} perf_memory_t;

typedef enum { PERF_DISPATCH, PERF_COMBINE, PERF_OPS } perf_op_t;

/** Microseconds of one operation over the iterations. */
typedef struct perf_time {
    int timed; /* else the rest is not set */
    double p10, median, p90, p99;
    double cpu;       /* of all ranks, median */
    double limit;     /* median of the better limit */
    double limit_cpu; /* its processor time: what to compare where others use the machine, too */
    double send, receive; /* --split: the slowest rank's, median */
    double overlapped;    /* --overlap: with computing between them, median */
    double computed;      /* and what the computing takes alone */
    double empty;         /* --fixed: without tokens, median */
} perf_time_t;

typedef struct perf_times {
    perf_time_t op[PERF_OPS];
    double round_trip; /* --fixed: of a flag between ranks 0 and 1; 0: not measured */
    double layout;     /* --fixed: xep_layout() of the tokens of a rank */
} perf_times_t;

/** For whom a rank waited: over the iterations of an operation. */
typedef struct perf_wait {
    uint64_t times, sum_ns, max_ns; /* iterations in which it did, and how long */
} perf_wait_t;

typedef struct perf {
    perf_options_t options;
    xep_group_t *group;
    xep_group_info_t info;
    int one_clock;          /* all ranks read the same CLOCK_MONOTONIC */
    uint32_t host_ranks;    /* ranks on this rank's machine */
    tool_routing_t *routing;
    tool_traffic_t traffic;
    tool_shape_t shape;     /* what is sent now; checks change payload and biases */
    uint64_t tokens;        /* T of this rank */
    uint64_t recv_rows;     /* most rows any rank receives */
    uint64_t sent_rows;     /* rows this rank sends */
    size_t row_bytes;       /* of x */
    size_t scale_bytes;     /* of a token */
    size_t placed_bytes, placed_scales; /* bytes of a row, and of its scales, as received */
    size_t sum_bytes;       /* of a combined row */
    xep_buffer_t *buffer;
    uint8_t *logfmt_from;   /* [R] for the oracle; with --quant logfmt only */
    uint32_t mapped;        /* ranks mapped, this one included; the fewest of any rank */
    perf_memory_t memory;
    void *x;                /* [T] rows */
    int64_t *idx;           /* [T][K] */
    float *weights;         /* [T][K] */
    uint32_t *scales;       /* [T] scales, or NULL */
    char *out;              /* [slots][T] sums */
    float *out_weights;     /* [T][K], with check */
    void *bias[2];          /* [T] sums each, with check */
    char *area;             /* expert outputs for --copy-in; destination and source of the limit */
    xep_handle_t *base;     /* --cached: whose routing is used */
    xep_handle_t **handle;  /* [slots] */
    xep_request_t **request; /* [slots] */
    int empty;              /* operations are without tokens now */
    uint64_t computing;     /* rounds of the compute kernel between the phases; 0: none */
    uint64_t sent_ns;       /* when the send phase of the last operation ended */
    uint64_t progress_ns;   /* when the progress line was last written */
    uint64_t *wait_ns;      /* [R] --waits: of the step that runs; else NULL, as waits */
    perf_wait_t *waits;     /* [R][PERF_OPS][R] of this rank, and once gathered of every rank, for each rank */
    const char *check_result;    /* "off", "ok", "failed" */
    const char *pressure_result;
} perf_t;

/* ---- perf_setup.c ---------------------------------------------------------------- */

/** Chooses the shape, makes routing, memory, buffer and inputs. 0 or the exit status, said why. Collective. */
int perf_setup(perf_t *perf);
void perf_teardown(perf_t *perf);

/** Routing and inputs of another seed. */
int perf_reseed(perf_t *perf, uint64_t seed);

/* ---- perf_ops.c: one step of every rank, options.slots operations each -------------- */

xep_status_t perf_dispatch(perf_t *perf);
xep_status_t perf_combine(perf_t *perf);

/** Computes for so many rounds on a few kilobytes. */
void perf_compute(uint64_t rounds);

/** Writes the experts' outputs for every handle, where combine will read them. */
xep_status_t perf_experts(perf_t *perf);
void perf_release(perf_t *perf);

/** Makes the handle whose routing --cached uses. */
xep_status_t perf_open_base(perf_t *perf);

/** The arguments of the timed operations, for variations. */
void perf_dispatch_args(const perf_t *perf, xep_dispatch_args_t *args_p);
void perf_combine_args(const perf_t *perf, uint32_t slot, xep_combine_args_t *args_p);

/* ---- perf_limit.c: the least these operations can take, in private memory ------------ */

typedef struct perf_limit perf_limit_t;

perf_limit_t *perf_limit_open(const perf_t *perf);
void perf_limit_close(perf_limit_t *limit);

/** Plans (with plan) and stores each row everywhere it goes. */
void perf_limit_dispatch(perf_limit_t *limit, int plan, int streaming);

/** Makes what perf_limit_combine() sums proper numbers again, after rows of another type were stored there. */
void perf_limit_experts(perf_limit_t *limit);

/** Reads each contribution once and stores one sum for each token. */
void perf_limit_combine(perf_limit_t *limit, int streaming);

/** Rows of the area begin at cache lines. */
static inline size_t perf_line_up(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* ---- perf_time.c ---------------------------------------------------------------------- */

/** Times all operations and limits. 0 or the exit status. Collective. */
int perf_time(perf_t *perf, perf_times_t *times_p);

/* ---- perf_fixed.c --------------------------------------------------------------------- */

/** Times flags and the layout, into round_trip and layout. Collective. */
xep_status_t perf_time_parts(perf_t *perf, perf_times_t *times_p);

/* ---- perf_waits.c: all but open and the last two do nothing without --waits --------------- */

void perf_waits_open(perf_t *perf);
void perf_waits_close(perf_t *perf);

/** A step begins; it was an iteration of this operation. */
void perf_waits_begin(perf_t *perf);
void perf_waits_book(perf_t *perf, perf_op_t op);

/** Every rank gets those of all. Collective. */
xep_status_t perf_waits_gather(perf_t *perf);

/** What the others waited for a rank, in microseconds of one operation. */
typedef struct perf_late {
    double mean, max;
    double percent; /* of the operations */
} perf_late_t;

void perf_late_of(const perf_t *perf, perf_op_t op, uint32_t late, perf_late_t *late_p);

/** What one rank waited for another, on average. */
double perf_wait_of(const perf_t *perf, perf_op_t op, uint32_t waiting, uint32_t late);

/* ---- perf_report.c, perf_json.c --------------------------------------------------------- */

/** Bytes an operation moves, all ranks together but for deepep: a rank's average. */
typedef struct perf_bytes {
    double logical, dedup, wire, deepep;
} perf_bytes_t;

void perf_bytes_of(const perf_t *perf, perf_op_t op, perf_bytes_t *bytes_p);

/** Median over limit; 0 where the limit is too short to measure. */
double perf_ratio_of(const perf_time_t *time);

/** Percent of the communication that --overlap hid behind the computing. */
double perf_hidden_of(const perf_time_t *time);

/** Rows received by all ranks. */
uint64_t perf_rows_of(const perf_t *perf);

void perf_report(const perf_t *perf, const perf_times_t *times);

/** Before a long run: NULL, or why rank 0 cannot write the file. */
const char *perf_json_complaint(const perf_t *perf, char *text, size_t bytes);

/** 0, or -1 and said why. */
int perf_write_json(const perf_t *perf, const perf_times_t *times);

/* ---- perf_check.c, perf_pressure.c -------------------------------------------------- */

/** Dispatches and combines in every way there is and compares all of it. 0 or the exit status. Collective. */
int perf_check(perf_t *perf, uint64_t payload);

/** Compares what perf_dispatch() and perf_combine() just brought. 0 or the exit status. Collective. */
int perf_compare_outputs(perf_t *perf);

/** Runs every seed twice and compares hashes. 0 or the exit status. Collective. */
int perf_pressure(perf_t *perf);

/* ---- perf_say.c --------------------------------------------------------------------- */

/** Prints a sentence, from rank 0 alone. */
void perf_say(const perf_t *perf, const char *format, ...) __attribute__((format(printf, 2, 3)));

/**
 * Ends the run after a failed call: says xep_last_error() once, aborts the group so that
 * nobody waits for this rank, returns the exit status.
 */
int perf_give_up(perf_t *perf, xep_status_t status);

/** Lets rank 0 say what is wrong before this rank's exit makes the launcher end the job. */
void perf_leave_word(void);

/** Whether some rank has a complaint; if so rank 0 prints that of the lowest. Collective. */
int perf_complained(perf_t *perf, const char *complaint);

/** A line on a terminal, rewritten; done of all. */
void perf_progress(perf_t *perf, const char *what, uint64_t done, uint64_t all);
void perf_progress_end(perf_t *perf);

/** The rank the launcher gave, before there is a group; -1: not known. */
int perf_launch_rank(void);

uint64_t perf_clock_ns(void);
uint64_t perf_cpu_ns(void);

#endif
