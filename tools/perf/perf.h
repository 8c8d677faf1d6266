/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * One run of xep_perf on this rank: what its parts share. main() reads the options (perf_options*.c), makes shape,
 * memory and buffer (perf_setup.c), checks (perf_check.c), times (perf_time*.c) and reports (perf_report*.c). What is
 * checked and timed are operations of the library (perf_ops*.c; on devices perf_cuda.c), and beside them the same by
 * hand (perf_by_hand*.c). --simulate runs nothing of this (perf_simulate*.c).
 */
#ifndef PERF_H
#define PERF_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <xep/xep.h>

#include "oracle.h"
#include "perf_options.h"

enum { PERF_EXIT_FAILED = 1, PERF_EXIT_USAGE = 2 };

/** Private memory of a rank, one piece, carved once. */
typedef struct perf_memory {
    void *base;
    size_t bytes;
} perf_memory_t;

typedef enum { PERF_DISPATCH, PERF_COMBINE, PERF_OPS } perf_op_t;

typedef struct perf {
    perf_options_t options;
    xep_group_t *group;
    xep_group_info_t info;
    int one_clock;       /* all ranks read the same CLOCK_MONOTONIC */
    uint32_t host_ranks; /* ranks on this rank's machine */
    oracle_routing_t *routing;
    oracle_traffic_t traffic;
    uint32_t *rank_rows;                /* [R][R] rows from rank to rank, as traffic of the run's own seed */
    uint32_t *nodes;                    /* [R] of each rank */
    oracle_shape_t shape;               /* what is sent now; checks change payload and biases */
    uint64_t tokens;                    /* T of this rank */
    uint64_t recv_rows;                 /* most rows any rank receives */
    uint64_t sent_rows;                 /* rows this rank sends */
    size_t row_bytes;                   /* of x */
    size_t scale_bytes;                 /* of a token */
    size_t placed_bytes, placed_scales; /* bytes of a row, and of what is beside it, as received */
    size_t sum_bytes;                   /* of a combined row */
    xep_buffer_t *buffer;
    uint8_t *encoded_from; /* [R] for the oracle; with --combine only */
    uint32_t mapped;       /* ranks mapped, this one included; the fewest of any rank */
    perf_memory_t memory;
    void *x;          /* [T] rows */
    int64_t *idx;     /* [T][K] */
    float *weights;   /* [T][K] */
    uint32_t *scales; /* [T] scales, or NULL */
    xep_payload_t payloads[XEP_PAYLOADS_MOST];
    char *out;                  /* [slots][T] sums */
    char *limit_sums[2];        /* [T], of the limit through the caches and past them */
    char *peer_sums[2];         /* likewise, with --peer */
    char *limit_rows[2];        /* where its packets go, likewise */
    float *out_weights;         /* [T][K], with check */
    void *bias[2];              /* [T] sums each, with check */
    char *area;                 /* expert outputs for --copy-in; destination and source of the limit */
    xep_handle_t *base;         /* --cached: whose routing is used */
    xep_handle_t **handle;      /* [slots] */
    xep_request_t **request;    /* [slots] */
    void *sends;                /* --in-place: where the next dispatch takes its rows from; NULL: from x */
    size_t sends_stride;        /* between rows there */
    int in_place;               /* it leaves them there */
    int streaming;              /* the limit and --peer: their stores go past the caches */
    uint64_t computing;         /* rounds of the compute kernel between the phases; 0: none */
    uint64_t sent_ns;           /* when the send phase of the last operation ended */
    uint64_t device_ns;         /* --memory cuda: how long the last operation was on its stream */
    uint64_t progress_ns;       /* when a line of progress was last written; 0: none yet */
    char progress_of[64];       /* what comes before it: the point of a sweep */
    uint32_t point;             /* of the sweep */
    uint64_t *wait_ns;          /* [R] --waits: of the step that runs; else NULL, as waits */
    struct perf_wait *waits;    /* [R][PERF_OPS][R] of this rank, and once gathered of every rank, for each rank */
    struct perf_limit *limit;   /* while operations are timed */
    struct perf_peer *peer;     /* --peer: else NULL */
    struct perf_cuda *cuda;     /* --memory cuda: else NULL */
    struct perf_pieces *pieces; /* --recv-rows: else NULL */
    struct perf_layer *layer;   /* --balance: likewise */
    int timing;                 /* nobody looks at what operations bring now */
    const char *check_result;   /* "off", "ok", "failed" */
    const char *pressure_result;
    struct perf_time *times;          /* [PERF_OPS] */
    void (*close)(struct perf *perf); /* before the process ends: reports what a check has found, and closes all */
} perf_t;

/** Rows of the area begin at cache lines. */
static inline size_t perf_line_up(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* ---- perf_setup.c ---- */

/** Chooses the shape, makes routing, memory, buffer and inputs. Collective. */
void perf_setup(perf_t *perf);
void perf_teardown(perf_t *perf);

/** With as much room as this routing needs and no more, as a program would ask for it; or as --recv-rows says. */
void perf_buffer_params(const perf_t *perf, int in_pieces, xep_buffer_params_t *params_p);

/** Rows and all that goes with them, which payload alone decides: the routing stays. */
void perf_fill_inputs(perf_t *perf, uint64_t payload);

/** Routing and inputs of another seed. */
void perf_reseed(perf_t *perf, uint64_t seed);

/* ---- perf_check.c ---- */

/** Dispatches and combines in every way there is and compares all of it with the oracle. Collective. */
void perf_check(perf_t *perf, uint64_t payload);

/** The same operations twice, for many seeds: compares hashes. Collective. */
void perf_pressure(perf_t *perf);

/* ---- perf_balance.c ---- */

/* --balance: a layer with experts: dispatch, a matrix by each row, combine. */

/** Buffers and weights, into perf->layer. Collective, as a layer with experts at their owners and a balanced one. */
void perf_layer_open(perf_t *perf);
void perf_layer_close(struct perf_layer *layer);
void perf_layer_at_owners(perf_t *perf);
void perf_layer_even(perf_t *perf);

/** A line for each, if there are any. */
void perf_layer_report(const perf_t *perf);

#endif
