/* SPDX-License-Identifier: BSD-3-Clause */

/** What xep_perf is asked to do. */
#ifndef PERF_PARAMS_H
#define PERF_PARAMS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <xep/xep.h>

#include "oracle_route_parse.h"
#include "perf_cluster.h"

enum { PERF_TOKENS = 4096, PERF_FEW_TOKENS = 128, PERF_SWEEP_MAX = 64 };

/** Values of one option that are measured one after the other. */
typedef struct perf_sweep {
    const char *name; /* "tokens", "hidden", "topk" or "sms" */
    size_t offset;    /* of its field in perf_options_t */
    uint64_t values[PERF_SWEEP_MAX];
    uint32_t count; /* 0: no sweep */
} perf_sweep_t;

typedef struct perf_options {
    const char *mode; /* NULL: the library's default */
    const char *op;   /* "pair", "dispatch", "combine": what is timed */
    uint64_t tokens;  /* 0: PERF_TOKENS, fewer where memory is short */
    uint64_t hidden, topk, experts;
    const char *dtype_name;
    const char *routing;
    const char *owners; /* NULL: blocks, without a map */
    uint64_t mask, seed;
    uint64_t iters, warmup;
    uint64_t slots, threads;
    uint64_t pressure;
    const char *json;
    const char *record;              /* NULL: the routing is not written */
    const char *simulate, *rates;    /* NULL: none */
    const char *sweep_text;          /* NULL: none */
    const char *quant_name, *layout; /* NULL: as the mode has it */
    const char *combine_quant_name;
    const char *payloads_text; /* NULL: none */
    const char *memory;        /* "host", "cuda" */
    uint64_t sms;              /* 0: the library's default */
    uint64_t overlap;          /* us of computing between the phases */
    uint64_t recv_rows;        /* 0: nothing in pieces */
    uint64_t pass_rows;        /* 0: the default */
    int sum_at_owner;
    int cached, copy_in, split, fixed, waits, peer, in_place;
    int placement;    /* with simulate */
    uint64_t balance; /* KiB of an expert's weights; 0: no layer is timed */
    int check, check_only;
    int list, help, version;
    xep_dtype_t dtype;                         /* of dtype_name */
    int by_expert, padded;                     /* of layout */
    int ll;                                    /* of mode, or XEP_MODE */
    int cuda;                                  /* of memory */
    xep_quant_t quant;                         /* of quant_name */
    xep_quant_t combine_quant;                 /* of combine_quant_name */
    xep_payload_t payloads[XEP_PAYLOADS_MOST]; /* of payloads_text: bytes and alignment */
    uint32_t npayloads;
    oracle_route_spec_t route; /* of routing */
    perf_sweep_t sweep;        /* of sweep_text */
    perf_cluster_t cluster;    /* of simulate and rates */
} perf_options_t;

/** Whether op has a dispatch, or a combine, that is timed. */
static inline int perf_times_dispatch(const perf_options_t *options)
{
    return strcmp(options->op, "combine") != 0;
}

static inline int perf_times_combine(const perf_options_t *options)
{
    return strcmp(options->op, "dispatch") != 0;
}

#endif
