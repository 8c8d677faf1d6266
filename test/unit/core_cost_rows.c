/* SPDX-License-Identifier: BSD-3-Clause */

/* Rows on their paths, counted once more: for each pair of ranks and each node, from a table of who needs what. */

#include <math.h>
#include <string.h>

#include "cost_rows.h"
#include "unit.h"

enum { MOST_RANKS = 24, MOST_TOKENS = 40 };

/** A job: who is where, and which ranks each token needs. */
typedef struct job {
    uint32_t nranks, nnodes, tokens;
    uint32_t node[MOST_RANKS];
    uint8_t needs[MOST_RANKS][MOST_TOKENS][MOST_RANKS];
} job_t;

static uint64_t random_state;

static uint32_t draw(uint32_t below)
{
    return unit_random(&random_state) % below;
}

/* Every node has a rank; the others are anywhere, or in turn. */
static void draw_job(job_t *job, uint64_t seed)
{
    random_state = seed;
    memset(job, 0, sizeof *job);
    job->nranks = 1 + draw(MOST_RANKS);
    job->nnodes = 1 + draw(job->nranks);
    job->tokens = 1 + draw(MOST_TOKENS);
    const int in_turn = (int)draw(2);
    for (uint32_t r = 0; r < job->nranks; r++)
        job->node[r] = r < job->nnodes || in_turn ? r % job->nnodes : draw(job->nnodes);
    for (uint32_t r = 0; r < job->nranks; r++)
        for (uint32_t t = 0; t < job->tokens; t++)
            for (uint32_t k = draw(9); k > 0; k--) job->needs[r][t][draw(job->nranks)] = 1;
}

/* ---- counted once more ---- */

static uint32_t place_of(const job_t *job, uint32_t rank)
{
    uint32_t place = 0;
    for (uint32_t r = 0; r < rank; r++) place += job->node[r] == job->node[rank];
    return place;
}

/* The rank of a node with the place of source, modulo its ranks. */
static uint32_t forwarder_of(const job_t *job, uint32_t source, uint32_t node)
{
    uint32_t members[MOST_RANKS], count = 0;
    for (uint32_t r = 0; r < job->nranks; r++)
        if (job->node[r] == node) members[count++] = r;
    return members[place_of(job, source) % count];
}

/* Over the network, in one dispatch. */
static double network_rows(const job_t *job, xep_cost_path_t path, uint32_t from, uint32_t to)
{
    double rows = 0;
    if (job->node[from] == job->node[to]) return 0;
    for (uint32_t t = 0; t < job->tokens; t++) {
        int needed = job->needs[from][t][to];
        if (path == XEP_COST_NODES) {
            needed = 0;
            for (uint32_t r = 0; r < job->nranks; r++)
                needed |= job->node[r] == job->node[to] && job->needs[from][t][r];
            needed &= forwarder_of(job, from, job->node[to]) == to;
        }
        rows += needed;
    }
    return rows;
}

/* Of source's tokens, from the memory of stores into that of to; both on one node. */
static double memory_rows(const job_t *job, xep_cost_path_t path, uint32_t source, uint32_t stores, uint32_t to)
{
    const int own = job->node[source] == job->node[to];
    double rows = 0;
    if (own ? stores != source : path == XEP_COST_FLAT || stores != forwarder_of(job, source, job->node[to])) return 0;
    for (uint32_t t = 0; t < job->tokens; t++) rows += job->needs[source][t][to];
    return rows;
}

static void count_again(const job_t *job, xep_cost_path_t path, double message_rows, uint32_t rank,
                        xep_cost_flow_t *flow)
{
    *flow = (xep_cost_flow_t){0};
    for (uint32_t other = 0; other < job->nranks; other++) {
        const double out = network_rows(job, path, rank, other), in = network_rows(job, path, other, rank);
        flow->sent += out;
        flow->came += in;
        flow->sent_messages += ceil(out / message_rows);
        flow->came_messages += ceil(in / message_rows);
        for (uint32_t t = 0; t < job->tokens; t++) flow->picked += job->needs[other][t][rank];
        for (uint32_t source = 0; source < job->nranks; source++) {
            const double stored = memory_rows(job, path, source, rank, other);
            if (source == rank) *(other == rank ? &flow->own : &flow->stored) += stored;
            else *(other == rank ? &flow->kept : &flow->passed) += stored;
            if (other != rank) flow->taken += memory_rows(job, path, source, other, rank);
        }
    }
}

static void assert_flow(const xep_cost_flow_t *found, const xep_cost_flow_t *wanted)
{
    const double *one = (const double *)found, *two = (const double *)wanted;
    for (size_t i = 0; i < sizeof *found / sizeof *one; i++)
        if (one[i] != two[i]) fail_msg("field %zu: %g, not %g", i, one[i], two[i]);
}

static void count_job(const job_t *job, const xep_cost_map_t *map, xep_cost_path_t path, double message_rows,
                      xep_cost_flow_t *flow)
{
    uint32_t to[MOST_RANKS] = {0}, ranks[MOST_RANKS];
    const xep_cost_count_t count = {.map = map, .path = path, .message_rows = message_rows, .flow = flow, .to = to};

    memset(flow, 0, MOST_RANKS * sizeof *flow);
    for (uint32_t source = 0; source < job->nranks; source++) {
        for (uint32_t t = 0; t < job->tokens; t++) {
            uint32_t n = 0;
            for (uint32_t r = 0; r < job->nranks; r++)
                if (job->needs[source][t][r]) ranks[n++] = r;
            xep_cost_count_token(&count, source, ranks, n);
        }
        xep_cost_count_end(&count, source);
    }
}

TEST(every_row_is_where_it_is_counted_by_hand)
{
    static job_t job;
    xep_cost_flow_t flow[MOST_RANKS], wanted;
    uint32_t words[3 * MOST_RANKS + 1];
    xep_cost_map_t map;

    for (uint64_t seed = 1; seed <= 150; seed++) {
        draw_job(&job, seed);
        xep_cost_make_map(&map, job.nranks, job.nnodes, job.node, words);
        for (xep_cost_path_t path = XEP_COST_FLAT; path < XEP_COST_PATHS; path++) {
            count_job(&job, &map, path, 3, flow);
            for (uint32_t rank = 0; rank < job.nranks; rank++) {
                count_again(&job, path, 3, rank, &wanted);
                assert_flow(&flow[rank], &wanted);
            }
        }
    }
}

/* Whatever the path, a rank gets the same rows, and over nodes no more of them cross the network. */
TEST(paths_bring_the_same_rows)
{
    static job_t job;
    xep_cost_flow_t flow[XEP_COST_PATHS][MOST_RANKS];
    uint32_t words[3 * MOST_RANKS + 1];
    xep_cost_map_t map;

    for (uint64_t seed = 1; seed <= 200; seed++) {
        draw_job(&job, seed);
        xep_cost_make_map(&map, job.nranks, job.nnodes, job.node, words);
        for (xep_cost_path_t path = XEP_COST_FLAT; path < XEP_COST_PATHS; path++)
            count_job(&job, &map, path, 5, flow[path]);
        for (uint32_t rank = 0; rank < job.nranks; rank++) {
            double rows = 0;
            for (uint32_t source = 0; source < job.nranks; source++)
                for (uint32_t t = 0; t < job.tokens; t++) rows += job.needs[source][t][rank];
            assert_true(xep_cost_received(&flow[XEP_COST_FLAT][rank], XEP_COST_FLAT) == rows);
            assert_true(xep_cost_received(&flow[XEP_COST_NODES][rank], XEP_COST_NODES) == rows);
            assert_true(flow[XEP_COST_NODES][rank].sent <= flow[XEP_COST_FLAT][rank].sent);
        }
    }
}

/* ---- what is expected ---- */

/* Each of K different experts, drawn without bias from those that are left. */
static void draw_experts(uint32_t experts, uint32_t topk, uint32_t *chosen)
{
    uint32_t left[64];
    for (uint32_t e = 0; e < experts; e++) left[e] = e;
    for (uint32_t k = 0; k < topk; k++) {
        const uint32_t at = draw(experts - k);
        chosen[k] = left[at];
        left[at] = left[experts - k - 1];
    }
}

TEST(what_is_expected_is_the_mean)
{
    /* nodes of 3, 2 and 1 ranks; ranks with 4 or 3 experts */
    static const uint32_t node[] = {0, 1, 0, 2, 1, 0}, first[] = {0, 4, 8, 11, 14, 17, 20};
    enum { RANKS = 6, TOPK = 5, TOKENS = 20000 };
    xep_cost_flow_t expected[RANKS], flow[RANKS];
    uint32_t words[2 * RANKS + 4], chosen[TOPK], ranks[TOPK], to[RANKS] = {0};
    xep_cost_map_t map;

    xep_cost_make_map(&map, RANKS, 3, node, words);
    for (xep_cost_path_t path = XEP_COST_FLAT; path < XEP_COST_PATHS; path++) {
        const xep_cost_count_t count = {.map = &map, .path = path, .message_rows = 1e9, .flow = flow, .to = to};
        random_state = 7;
        memset(flow, 0, sizeof flow);
        for (uint32_t source = 0; source < RANKS; source++) {
            for (uint32_t t = 0; t < TOKENS; t++) {
                uint32_t n = 0;
                draw_experts(first[RANKS], TOPK, chosen);
                for (uint32_t k = 0; k < TOPK; k++)
                    for (uint32_t r = 0; r < RANKS; r++)
                        if (chosen[k] >= first[r] && chosen[k] < first[r + 1]) ranks[n++] = r;
                xep_cost_count_token(&count, source, ranks, n);
            }
            xep_cost_count_end(&count, source);
        }
        xep_cost_expect_rows(&map, path, first, TOPK, TOKENS, 1e9, expected);
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            const double *one = (const double *)&flow[rank], *two = (const double *)&expected[rank];
            for (size_t i = 0; i < sizeof *flow / sizeof *one; i++)
                if (fabs(one[i] - two[i]) > 0.02 * two[i])
                    fail_msg("rank %u, field %zu: %g, %g", rank, i, one[i], two[i]);
        }
    }
}
