/* SPDX-License-Identifier: BSD-3-Clause */

/** The job that --simulate is about, and what its machines can do: --rates. */
#ifndef PERF_CLUSTER_H
#define PERF_CLUSTER_H

#include <stddef.h>
#include <stdint.h>

#include "cost_model.h"

enum { PERF_MOST_RANKS = 4096, PERF_MOST_SIZES = 64 };

typedef struct perf_cluster {
    uint32_t nranks;                 /* 0: nothing is simulated */
    uint32_t sizes[PERF_MOST_SIZES]; /* ranks of nodes, in turn; the last node may be smaller */
    uint32_t nsizes;
    xep_cost_rates_t rates;
    double message_bytes, pass_rows; /* as xep_cost_sizes_t has them; pass_rows 0: twice the tokens of a rank */
    double sum_elem; /* bytes of an element of a node's sum, for a row of a combine from another node; 0: of the row */
} perf_cluster_t;

/**
 * Takes the words of --simulate and --rates apart. Without either, NULL, the cluster has 0 ranks, or the usual rates.
 * 0, or -1 and a sentence.
 */
int perf_cluster_read(const char *job, const char *rates, perf_cluster_t *cluster_p, char *why, size_t why_bytes);

/** node [nranks] of each rank: consecutive ranks. Returns how many nodes there are. */
uint32_t perf_cluster_nodes(const perf_cluster_t *cluster, uint32_t *node);

#endif
