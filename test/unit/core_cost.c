/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * What paths over several nodes cost: rows counted here once more, for each pair of ranks and each node, from a table
 * of who needs what; bytes, times and memory by hand.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <xep/xep.h>

#include "cost_model.h"
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
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % below;
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
        for (int operation = 0; operation < XEP_COST_OPERATIONS; operation++) {
            flow->sent_messages[operation] += ceil(out / (message_rows + operation));
            flow->came_messages[operation] += ceil(in / (message_rows + operation));
        }
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
    const xep_cost_count_t count = {.map = map,
                                    .path = path,
                                    .message_rows = {message_rows, message_rows + 1},
                                    .flow = flow,
                                    .to = to};

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
    const double message_rows[XEP_COST_OPERATIONS] = {1e9, 1e9};
    xep_cost_flow_t expected[RANKS], flow[RANKS];
    uint32_t words[2 * RANKS + 4], chosen[TOPK], ranks[TOPK], to[RANKS] = {0};
    xep_cost_map_t map;

    xep_cost_make_map(&map, RANKS, 3, node, words);
    for (xep_cost_path_t path = XEP_COST_FLAT; path < XEP_COST_PATHS; path++) {
        const xep_cost_count_t count = {.map = &map, .path = path, .message_rows = {1e9, 1e9}, .flow = flow, .to = to};
        random_state = 7;
        memset(flow, 0, sizeof flow);
        for (uint32_t source = 0; source < RANKS; source++) {
            for (uint32_t t = 0; t < TOKENS; t++) {
                uint8_t seen[RANKS] = {0};
                uint32_t n = 0;
                draw_experts(first[RANKS], TOPK, chosen);
                for (uint32_t k = 0; k < TOPK; k++)
                    for (uint32_t r = 0; r < RANKS; r++)
                        if (chosen[k] >= first[r] && chosen[k] < first[r + 1] && !seen[r]++) ranks[n++] = r;
                xep_cost_count_token(&count, source, ranks, n);
            }
            xep_cost_count_end(&count, source);
        }
        xep_cost_expect_rows(&map, path, first, TOPK, TOKENS, message_rows, expected);
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            const double *one = (const double *)&flow[rank], *two = (const double *)&expected[rank];
            for (size_t i = 0; i < sizeof *flow / sizeof *one; i++)
                if (fabs(one[i] - two[i]) > 0.02 * two[i])
                    fail_msg("rank %u, field %zu: %g, %g", rank, i, one[i], two[i]);
        }
    }
}

/* ---- bytes, time, memory ---- */

static const uint32_t two_by_two[] = {0, 0, 1, 1}, eight_experts[] = {0, 2, 4, 6, 8};
static const xep_cost_sizes_t sizes_of_two_by_two = {.topk = 2,
                                                     .slots = 2,
                                                     .tokens = 100,
                                                     .recv_rows = 400,
                                                     .row_bytes = 1000,
                                                     .sum_bytes = 500,
                                                     .message_bytes = 3000,
                                                     .pass_rows = 30,
                                                     .first_expert = eight_experts};

/* Rank 0 sends 100 tokens to both ranks of the other node; nothing else moves. */
static void flow_of_two_by_two(const xep_cost_map_t *map, xep_cost_path_t path, xep_cost_flow_t flow[4])
{
    static const uint32_t ranks[] = {2, 3};
    uint32_t to[4] = {0};
    xep_cost_count_t count = {.map = map, .path = path, .flow = flow, .to = to};

    memset(flow, 0, 4 * sizeof *flow);
    xep_cost_message_rows(path, &sizes_of_two_by_two, count.message_rows);
    for (int t = 0; t < 100; t++) xep_cost_count_token(&count, 0, ranks, 2);
    xep_cost_count_end(&count, 0);
}

static void assert_close(double found, double wanted)
{
    if (fabs(found - wanted) > 1e-9 * fabs(wanted)) fail_msg("%.12g, not %.12g", found, wanted);
}

/* A row of a dispatch is 1000 bytes, its token and two selections: 1000 + 4 + 2 * 12; while it passes, + 2 * 8. */
TEST(bytes_and_messages)
{
    enum { ROW = 1028, PASSED = 1020, WORD = 40, FLAT_RECORD = 128, NODES_RECORD = 192 };
    xep_cost_flow_t flow[4];
    xep_cost_load_t load;
    uint32_t words[2 * 4 + 3];
    xep_cost_map_t map;

    xep_cost_make_map(&map, 4, 2, two_by_two, words);
    flow_of_two_by_two(&map, XEP_COST_FLAT, flow);
    xep_cost_find_load(&map, XEP_COST_FLAT, XEP_COST_DISPATCH, &sizes_of_two_by_two, &flow[0], 0, &load);
    assert_close(load.sent_rows, 200);
    assert_close(load.sent_bytes, 200 * ROW + 2 * (2 * WORD + FLAT_RECORD));
    assert_close(load.sent_messages, 2 * 50 + 2 * 2); /* two rows of 1028 bytes in 3000 */
    assert_close(load.near_messages, 2);
    assert_close(load.copied, 0);
    xep_cost_find_load(&map, XEP_COST_FLAT, XEP_COST_COMBINE, &sizes_of_two_by_two, &flow[0], 0, &load);
    assert_close(load.came_bytes, 200 * 500 + 2 * 2 * WORD);
    assert_close(load.came_messages, 2 * 17 + 2 * 2); /* six rows of 500 */
    assert_close(load.copied, 200 * 500);

    flow_of_two_by_two(&map, XEP_COST_NODES, flow);
    xep_cost_find_load(&map, XEP_COST_NODES, XEP_COST_DISPATCH, &sizes_of_two_by_two, &flow[0], 0, &load);
    assert_close(load.sent_bytes, 100 * PASSED + 2 * WORD + NODES_RECORD);
    assert_close(load.sent_messages, 50 + 2);
    xep_cost_find_load(&map, XEP_COST_NODES, XEP_COST_DISPATCH, &sizes_of_two_by_two, &flow[2], 2, &load);
    assert_close(load.passed, 200 * ROW); /* one for rank 3, one that it keeps */
    assert_close(load.near_rows, 100);
    xep_cost_find_load(&map, XEP_COST_NODES, XEP_COST_COMBINE, &sizes_of_two_by_two, &flow[0], 0, &load);
    assert_close(load.copied, 100 * 500); /* one sum of the other node for each token */
}

static xep_cost_time_t time_of(xep_cost_path_t path, xep_cost_operation_t operation, const xep_cost_rates_t *rates)
{
    xep_cost_flow_t flow[4];
    xep_cost_time_t found;
    uint32_t words[2 * 4 + 3];
    xep_cost_map_t map;

    xep_cost_make_map(&map, 4, 2, two_by_two, words);
    flow_of_two_by_two(&map, path, flow);
    xep_cost_find_time(&map, path, operation, &sizes_of_two_by_two, rates, flow, &found);
    return found;
}

TEST(times)
{
    const double dispatch_bytes = 200 * 1028 + 2 * 208 + 2 * 208; /* rank 1 sends its records, too */
    xep_cost_rates_t rates = {.node_network = 1e6};

    assert_close(time_of(XEP_COST_FLAT, XEP_COST_DISPATCH, &rates).seconds, dispatch_bytes / 1e6);
    assert_close(time_of(XEP_COST_NODES, XEP_COST_DISPATCH, &rates).seconds, (100 * 1020 + 2 * 272) / 1e6);
    rates = (xep_cost_rates_t){.rank_network = 1e6};
    assert_close(time_of(XEP_COST_FLAT, XEP_COST_DISPATCH, &rates).seconds, (200 * 1028 + 2 * 208) / 1e6);
    rates = (xep_cost_rates_t){.message = 1e-3}; /* rank 0 also hears 2 words of both */
    assert_close(time_of(XEP_COST_FLAT, XEP_COST_DISPATCH, &rates).seconds, (2 * 50 + 4 + 4) * 1e-3);
    rates = (xep_cost_rates_t){.latency = 1e-2};
    assert_close(time_of(XEP_COST_FLAT, XEP_COST_DISPATCH, &rates).seconds, 2e-2);
    assert_close(time_of(XEP_COST_FLAT, XEP_COST_COMBINE, &rates).seconds, 1e-2);
    rates = (xep_cost_rates_t){.rank_memory = 1e6};
    assert_close(time_of(XEP_COST_FLAT, XEP_COST_DISPATCH, &rates).seconds, 0); /* nothing within a node */
    assert_close(time_of(XEP_COST_FLAT, XEP_COST_COMBINE, &rates).seconds, 200 * 500 / 1e6);
    assert_close(time_of(XEP_COST_NODES, XEP_COST_DISPATCH, &rates).seconds, 200 * 1028 / 1e6);
    assert_close(time_of(XEP_COST_NODES, XEP_COST_COMBINE, &rates).seconds, (200 * 500 + 100 * 500) / 1e6);
    /* rows in memory hide behind those that travel, but for the last sum */
    rates = (xep_cost_rates_t){.node_network = 1e6, .node_memory = 1e6};
    assert_close(time_of(XEP_COST_NODES, XEP_COST_COMBINE, &rates).seconds, (200 * 500 + 100 * 500) / 1e6);
    rates.node_network = 1e5;
    assert_close(time_of(XEP_COST_NODES, XEP_COST_COMBINE, &rates).seconds,
                 (100 * 500 + 2 * 2 * 2 * 40) / 1e5 + 100 * 500 / 1e6);
}

/* Each where the other would be wrong. */
TEST(which_path)
{
    static const uint32_t alone[] = {0, 1, 2, 3}, together[] = {0, 0, 0, 0};
    const xep_cost_rates_t slow_network = {.node_network = 1e6, .rank_memory = 1e9};
    const xep_cost_rates_t slow_memory = {.node_network = 1e12, .rank_memory = 1e6};
    xep_cost_time_t time[XEP_COST_PATHS][XEP_COST_OPERATIONS];
    xep_cost_flow_t flow[4];
    uint32_t words[2 * 4 + 5];
    xep_cost_map_t map;

    xep_cost_make_map(&map, 4, 2, two_by_two, words);
    assert_int_equal(xep_cost_expect_path(&map, &sizes_of_two_by_two, &slow_network, flow, time), XEP_COST_NODES);
    assert_true(time[XEP_COST_NODES][XEP_COST_DISPATCH].seconds < time[XEP_COST_FLAT][XEP_COST_DISPATCH].seconds);
    assert_int_equal(xep_cost_expect_path(&map, &sizes_of_two_by_two, &slow_memory, flow, time), XEP_COST_FLAT);
    xep_cost_make_map(&map, 4, 4, alone, words);
    assert_int_equal(xep_cost_expect_path(&map, &sizes_of_two_by_two, &slow_network, flow, time), XEP_COST_FLAT);
    xep_cost_make_map(&map, 4, 1, together, words);
    assert_int_equal(xep_cost_expect_path(&map, &sizes_of_two_by_two, &slow_network, flow, time), XEP_COST_FLAT);
    assert_true(time[XEP_COST_FLAT][XEP_COST_DISPATCH].network == 0);
}

TEST(memory)
{
    xep_cost_sizes_t sizes = sizes_of_two_by_two;
    uint32_t words[2 * 4 + 3];
    xep_cost_map_t map;

    /* of a slot: rows of 1024 + 28 bytes, sums of 512 + 8; returned: 2 for each token, or one; mail and
     * records; by nodes: rows in passing, and what one feeder says */
    const double received = 400 * (1024 + 28 + 512 + 8);
    xep_cost_make_map(&map, 4, 2, two_by_two, words);
    assert_close(xep_cost_memory(&map, XEP_COST_FLAT, &sizes, 0), 2 * (received + 200 * 520 + 4 * (64 + 128)));
    assert_close(xep_cost_memory(&map, XEP_COST_NODES, &sizes, 0),
                 2 * (received + 100 * 520 + 4 * (64 + 128) + 30 * (1024 + 20 + 520) + (64 + 192)));
}
