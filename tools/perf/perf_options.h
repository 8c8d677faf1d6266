/* SPDX-License-Identifier: BSD-3-Clause */

/** The command line of xep_perf: what it is asked to do. */
#ifndef PERF_OPTIONS_H
#define PERF_OPTIONS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <xep/xep.h>

#include "cost_model.h"
#include "oracle.h"
#include "oracle_route_parse.h"

enum { PERF_TOKENS = 4096, PERF_FEW_TOKENS = 128, PERF_SWEEP_MAX = 64 };

/** Values of one option that are measured one after the other. */
typedef struct perf_sweep {
    const char *name; /* "tokens", "hidden", "topk" or "sms" */
    size_t offset;    /* of its field in perf_options_t */
    uint64_t values[PERF_SWEEP_MAX];
    uint32_t count; /* 0: no sweep */
} perf_sweep_t;

enum { PERF_MOST_RANKS = 4096, PERF_MOST_SIZES = 64 };

/** The job that --simulate is about, and what its machines can do: --rates. */
typedef struct perf_cluster {
    uint32_t nranks;                 /* 0: nothing is simulated */
    uint32_t sizes[PERF_MOST_SIZES]; /* ranks of nodes, in turn; the last node may be smaller */
    uint32_t nsizes;
    xep_cost_rates_t rates;
    double message_bytes, pass_rows; /* as xep_cost_sizes_t has them; pass_rows 0: twice the tokens of a rank */
} perf_cluster_t;

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
    int cached, copy_in, split, waits, peer, in_place;
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
    char why[512];             /* what is wrong with them */
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

/** 0, or -1 and a sentence in why. Nothing is printed. */
int perf_options_parse(int argc, char **argv, perf_options_t *options_p, char *why, size_t why_bytes);

/** Says what is wrong with the options: -1. */
#define perf_refuse(_options, ...) (snprintf((_options)->why, sizeof(_options)->why, __VA_ARGS__), -1)

/** Puts a value of the sweep in its place. */
void perf_options_sweep(perf_options_t *options, uint32_t at);

/** To stdout. */
void perf_options_help(void);

/* ---- perf_options_cluster.c ---- */

/** Takes the words of --simulate and --rates apart: 0 ranks without the one, the usual rates without the other. */
int perf_cluster_read(perf_options_t *options);

/** node [nranks] of each rank: consecutive ranks. Returns how many nodes there are. */
uint32_t perf_cluster_nodes(const perf_cluster_t *cluster, uint32_t *node);

/* ---- perf_options_resolve.c ---- */

/* What options mean together, and which of them do not go together: 0, or as perf_refuse(). */

/** What a row is: its type, its cast, its arrangement. */
int perf_resolve_rows(perf_options_t *options);

/** All that also depends on the sweep. */
int perf_resolve_others(perf_options_t *options);

/** What options say of rows, of the words beside a row that a buffer is asked for, of the routing, and of tokens. */
oracle_shape_t perf_shape_of(const perf_options_t *options);
uint32_t perf_scales_of(const oracle_shape_t *shape);
oracle_routing_params_t perf_routing_of(const perf_options_t *options, uint32_t nranks, uint64_t tokens);

/** PERF_TOKENS where nothing is said; a file says by itself how many there are. */
uint64_t perf_tokens_of(const perf_options_t *options);

#endif
