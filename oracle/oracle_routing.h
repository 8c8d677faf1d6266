/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Routing generator: which experts each token of each rank selects, and with what weights.
 *
 * A token's selections are drawn from its own stream in this order, u being the next number:
 *   1. the selections, as the kind below says; a repeated one is drawn again;
 *   2. K weights, ((u >> 40) + 1) / 2^24: fp32 in (0, 1], not normalised;
 *   3. with a mask only: one u for each selection, u % 1000 < mask makes it -1 (its weight stays).
 *
 *   uniform      expert u % E
 *   group:G,N    first N distinct of G groups, u % G each; then group chosen[u % N], its
 *                expert (u >> 32) % (E / G)
 *   zipf:S       the n-th most popular expert is drawn in proportion to 1 / n^S among those
 *                not yet selected; which expert is n-th is shuffled by the seed
 *   one-rank     K distinct experts of rank 0; where it owns fewer, those and then -1
 *   self         K distinct experts of the token's own rank; where it owns fewer, those and then -1
 *   file:PATH    lines "RANK TOKEN E0 E1 ..", at most K experts, -1 for none; what is left out is -1;
 *                "#" starts a comment. A rank has as many tokens as its highest TOKEN says, plus 1.
 */
#ifndef ORACLE_ROUTING_H
#define ORACLE_ROUTING_H

#include <stddef.h>
#include <stdint.h>

#include "oracle_route_parse.h"

typedef struct oracle_routing_params {
    oracle_route_spec_t spec;
    uint64_t seed;
    uint32_t nranks;
    uint32_t experts;
    uint32_t topk;
    uint32_t mask;             /* selections of 1000 that become -1 */
    uint64_t tokens;           /* of each rank; with file: the most a rank may have, 0: any number */
    const uint64_t *tokens_of; /* [nranks] or NULL: tokens of each rank, when they differ */
    const char *owners;        /* as oracle_owners_make() takes it, or NULL: blocks without a map */
} oracle_routing_params_t;

/** A test that routes by itself (oracle_source_t) fills in nranks, experts, topk and tokens_of of params alone. */
typedef struct oracle_routing {
    oracle_routing_params_t params; /* tokens_of is never NULL here */
    uint64_t tokens;                /* most of any rank */
    uint64_t *tokens_of;            /* [nranks] */
    uint32_t *popular;              /* [experts] zipf: experts by falling popularity */
    uint64_t *popularity;           /* [experts] zipf: in that order */
    uint64_t popularity_sum;
    struct oracle_route_file *file; /* file */
    uint32_t *owners;               /* [experts] rank of each, or NULL: blocks */
} oracle_routing_t;

/** 0, or -1 and a sentence in why. Reads the file, if any. */
int oracle_routing_create(const oracle_routing_params_t *params, oracle_routing_t **routing_p, char *why,
                          size_t why_bytes);
void oracle_routing_destroy(oracle_routing_t *routing);

/** Writes the selections of all tokens to a file, as the kind "file" reads them. 0, or -1 and a sentence in why. */
int oracle_routing_write(const oracle_routing_t *routing, const char *path, char *why, size_t why_bytes);

/** Selections [K] and weights [K] of a token. */
void oracle_route(const oracle_routing_t *routing, uint32_t rank, uint64_t token, int32_t *idx, float *weights);

/** How often a rank selects each expert: adds to counts [E]. */
void oracle_count_selections(const oracle_routing_t *routing, uint32_t rank, uint64_t *counts);

/** Lowest expert of a rank, E where it owns none, and how many it owns. */
void oracle_experts_of(const oracle_routing_t *routing, uint32_t rank, uint32_t *first_p, uint32_t *count_p);

/** The expert of a rank that has so many lower ones there. */
uint32_t oracle_expert_of(const oracle_routing_t *routing, uint32_t rank, uint32_t local);

/** The rank that owns an expert. */
uint32_t oracle_owner(const oracle_routing_t *routing, uint32_t expert);

/** The distinct ranks of K selections, ascending, into ranks [K]; returns how many. */
uint32_t oracle_destinations(const oracle_routing_t *routing, const int32_t *idx, uint32_t *ranks);

#endif
