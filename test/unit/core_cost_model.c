/* SPDX-License-Identifier: BSD-3-Clause */

/* What paths cost, in bytes, time and memory: worked out by hand, and memory beside that of a buffer. */

#include <math.h>
#include <string.h>

#include <xep/xep.h>

#include "cost_model.h"
#include "unit.h"

static const uint32_t two_by_two[] = {0, 0, 1, 1}, eight_experts[] = {0, 2, 4, 6, 8};
static const xep_cost_sizes_t sizes_of_two_by_two = {.topk = 2,
                                                     .slots = 2,
                                                     .tokens = 100,
                                                     .recv_rows = 400,
                                                     .row_bytes = 1000,
                                                     .sum_bytes = 500,
                                                     .node_sum_bytes = 500,
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
    assert_close(load.came_bytes, 100 * 500 + 2 * 2 * WORD);
}

/* Sums that travel in fp32 are twice as long, and what they are made of is not. */
TEST(sums_of_nodes_may_be_wider)
{
    xep_cost_sizes_t wide = sizes_of_two_by_two;
    xep_cost_flow_t flow[4];
    xep_cost_load_t load;
    uint32_t words[2 * 4 + 3];
    xep_cost_map_t map;
    double memory;

    wide.node_sum_bytes = 1000;
    xep_cost_make_map(&map, 4, 2, two_by_two, words);
    flow_of_two_by_two(&map, XEP_COST_NODES, flow);
    xep_cost_find_load(&map, XEP_COST_NODES, XEP_COST_COMBINE, &wide, &flow[0], 0, &load);
    assert_close(load.came_bytes, 100 * 1000 + 2 * 2 * 40);
    assert_close(load.copied, 100 * 1000);
    xep_cost_find_load(&map, XEP_COST_NODES, XEP_COST_COMBINE, &wide, &flow[2], 2, &load);
    assert_close(load.passed, 200 * 500);
    memory = xep_cost_memory(&map, XEP_COST_NODES, &wide, 0) -
             xep_cost_memory(&map, XEP_COST_NODES, &sizes_of_two_by_two, 0);
    assert_close(memory, 2 * (100 + 30) * (1024 - 512)); /* slots; rows that return, and that pass; in lines of 64 */
    assert_close(xep_cost_memory(&map, XEP_COST_FLAT, &wide, 0),
                 xep_cost_memory(&map, XEP_COST_FLAT, &sizes_of_two_by_two, 0));
}

TEST(a_row_is_never_more_than_one_message)
{
    xep_cost_sizes_t sizes = sizes_of_two_by_two;
    double rows[XEP_COST_OPERATIONS];

    sizes.message_bytes = 700;
    xep_cost_message_rows(XEP_COST_FLAT, &sizes, rows);
    assert_close(rows[XEP_COST_DISPATCH], 1);
    assert_close(rows[XEP_COST_COMBINE], 1);
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
    assert_close(time_of(XEP_COST_FLAT, XEP_COST_COMBINE, &rates).seconds,
                 (200 * 500 + 2 * 80) / 1e6);    /* it gets them */
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
    assert_close(time_of(XEP_COST_NODES, XEP_COST_DISPATCH, &rates).seconds, 200 * 1028 / 1e6);
    rates.node_network = 1e5;
    assert_close(time_of(XEP_COST_NODES, XEP_COST_COMBINE, &rates).seconds,
                 (100 * 500 + 2 * 2 * 2 * 40) / 1e5 + 100 * 500 / 1e6);
}

/* Of tokens that select evenly: as a buffer that is made expects them. */
static xep_cost_path_t expect_path(const xep_cost_map_t *map, const xep_cost_sizes_t *sizes,
                                   const xep_cost_rates_t *rates, xep_cost_flow_t *flow,
                                   xep_cost_time_t time[][XEP_COST_OPERATIONS])
{
    for (xep_cost_path_t path = XEP_COST_FLAT; path < XEP_COST_PATHS; path++)
        for (xep_cost_operation_t operation = XEP_COST_DISPATCH; operation < XEP_COST_OPERATIONS; operation++) {
            xep_cost_expect_flow(map, path, operation, sizes, flow);
            xep_cost_find_time(map, xep_cost_way(sizes, path, operation), operation, sizes, rates, flow,
                               &time[path][operation]);
        }
    return xep_cost_choose_path(map, (const xep_cost_time_t(*)[XEP_COST_OPERATIONS])time);
}

/* Each where the other would be wrong. */
TEST(which_path)
{
    static const uint32_t alone[] = {0, 1, 2, 3}, together[] = {0, 0, 0, 0};
    const xep_cost_rates_t slow_network = {.node_network = 1e6, .rank_memory = 1e9};
    const xep_cost_rates_t none = {0};
    const xep_cost_rates_t slow_memory = {.node_network = 1e12, .rank_memory = 1e6};
    xep_cost_time_t time[XEP_COST_PATHS][XEP_COST_OPERATIONS];
    xep_cost_flow_t flow[4];
    uint32_t words[2 * 4 + 5];
    xep_cost_map_t map;

    xep_cost_make_map(&map, 4, 2, two_by_two, words);
    assert_int_equal(expect_path(&map, &sizes_of_two_by_two, &slow_network, flow, time), XEP_COST_NODES);
    assert_true(time[XEP_COST_NODES][XEP_COST_DISPATCH].seconds < time[XEP_COST_FLAT][XEP_COST_DISPATCH].seconds);
    assert_int_equal(expect_path(&map, &sizes_of_two_by_two, &slow_memory, flow, time), XEP_COST_FLAT);
    assert_int_equal(expect_path(&map, &sizes_of_two_by_two, &none, flow, time), XEP_COST_FLAT);
    xep_cost_make_map(&map, 4, 4, alone, words);
    assert_int_equal(expect_path(&map, &sizes_of_two_by_two, &slow_network, flow, time), XEP_COST_FLAT);
    xep_cost_make_map(&map, 4, 1, together, words);
    assert_int_equal(expect_path(&map, &sizes_of_two_by_two, &slow_network, flow, time), XEP_COST_FLAT);
    assert_true(time[XEP_COST_FLAT][XEP_COST_DISPATCH].network == 0);
}

/*
 * In ll a dispatch sends rows without metadata, and a head and a notice before and behind them, to each rank or to one
 * of a node; receivers copy rows when they are there. Its combine is flat.
 */
TEST(by_selection)
{
    enum { ROW = 1024, HEAD = 100 * 2 * 4 + 64 };
    static const xep_cost_rates_t slow_network = {.node_network = 1e6, .rank_memory = 1e9},
                                  slow_memory = {.node_network = 1e12, .rank_memory = 1e3};
    xep_cost_sizes_t sizes = sizes_of_two_by_two;
    xep_cost_time_t time[XEP_COST_PATHS][XEP_COST_OPERATIONS];
    xep_cost_flow_t flow[4];
    xep_cost_load_t load;
    uint32_t words[2 * 4 + 3];
    xep_cost_map_t map;

    sizes.by_selection = 1;
    xep_cost_make_map(&map, 4, 2, two_by_two, words);
    assert_int_equal(xep_cost_way(&sizes, XEP_COST_NODES, XEP_COST_DISPATCH), XEP_COST_NODES);
    assert_int_equal(xep_cost_way(&sizes, XEP_COST_NODES, XEP_COST_COMBINE), XEP_COST_FLAT);
    for (xep_cost_path_t path = XEP_COST_FLAT; path < XEP_COST_PATHS; path++) {
        const double receivers = path == XEP_COST_FLAT ? 2 : 1;
        flow_of_two_by_two(&map, path, flow);
        flow[2].picked = 100;
        xep_cost_find_load(&map, path, XEP_COST_DISPATCH, &sizes, &flow[0], 0, &load);
        assert_close(load.sent_rows, receivers * 100);
        assert_close(load.sent_bytes, receivers * (100 * ROW + HEAD));
        assert_close(load.copied, 0);
        xep_cost_find_load(&map, path, XEP_COST_DISPATCH, &sizes, &flow[2], 2, &load);
        assert_close(load.copied, 100 * ROW);
        assert_close(load.passed, 0);
    }
    assert_int_equal(expect_path(&map, &sizes, &slow_network, flow, time), XEP_COST_NODES);
    assert_true(time[XEP_COST_NODES][XEP_COST_DISPATCH].seconds < time[XEP_COST_FLAT][XEP_COST_DISPATCH].seconds);
    assert_true(time[XEP_COST_NODES][XEP_COST_COMBINE].seconds == time[XEP_COST_FLAT][XEP_COST_COMBINE].seconds);
    /* as nobody passes rows on, it pays where memory is slow, too */
    assert_int_equal(expect_path(&map, &sizes, &slow_memory, flow, time), XEP_COST_NODES);
    assert_close(time[XEP_COST_NODES][XEP_COST_DISPATCH].memory, 200 * ROW / 1e3);
    /* a row for each of 200 selections of a rank: half of them come back from the other node */
    assert_close(time[XEP_COST_FLAT][XEP_COST_COMBINE].memory, 200 * 500 / 1e3);
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

/* Of nodes of 3 and of 1: the one is the forwarder of three, of the three the first is that of one. */
TEST(memory_for_feeders)
{
    static const uint32_t three_and_one[] = {0, 0, 0, 1};
    xep_cost_sizes_t sizes = sizes_of_two_by_two;
    uint32_t words[2 * 4 + 3];
    xep_cost_map_t map;

    xep_cost_make_map(&map, 4, 2, three_and_one, words);
    const double none = xep_cost_memory(&map, XEP_COST_NODES, &sizes, 2);
    assert_close(xep_cost_memory(&map, XEP_COST_NODES, &sizes, 0), none + 2 * (64 + 192));
    assert_close(xep_cost_memory(&map, XEP_COST_NODES, &sizes, 3), none + 2 * 3 * (64 + 192));
    /* a token returns from no more ranks than it has experts */
    const double two = xep_cost_memory(&map, XEP_COST_FLAT, &sizes, 3);
    sizes.topk = 3;
    const double three = xep_cost_memory(&map, XEP_COST_FLAT, &sizes, 3);
    sizes.topk = 4;
    assert_close(three - two, 2 * (400 * (12 + 4) + 100 * (3 * 524 - 2 * 520)));
    assert_close(xep_cost_memory(&map, XEP_COST_FLAT, &sizes, 3) - three, 2 * (400 * (12 + 4) + 100 * 3 * 4));
}

/* Room for all, as long as it is little; for what 512 MiB hold; for an even load and six deviations. */
TEST(inboxes)
{
    assert_int_equal(xep_cost_inbox_rows(128, 1, 14336, 4 * 64), 128);
    assert_int_equal(xep_cost_inbox_rows(128, 1, 14336, 4 * 256), 36);
    assert_int_equal(xep_cost_inbox_rows(128, 49, 14336, 4 * 256), 49 + 42 + 6);
    assert_int_equal(xep_cost_inbox_rows(128, 100, 14336, 4 * 1024), 128);
    assert_int_equal(xep_cost_inbox_rows(128, 4, 14336, 4 * 4096), 4 + 12 + 6);
    assert_int_equal(xep_cost_inbox_rows(1, 1, 1e12, 1), 1);
}

/* A rank of 1,024 that decode, with slots for an even load and a quarter more. */
TEST(memory_of_many_ranks)
{
    xep_buffer_params_t params = XEP_BUFFER_PARAMS_INIT;
    xep_buffer_size_t size = XEP_BUFFER_SIZE_INIT, masked = XEP_BUFFER_SIZE_INIT;

    params.mode = "ll";
    params.experts = 288;
    params.topk = 8;
    params.hidden = 7168;
    params.tokens = 128;
    params.recv_rows = 4551;
    assert_int_equal(xep_buffer_size(&params, 1024, &size), XEP_OK);
    assert_in_range(size.bytes, UINT64_C(1) << 30, UINT64_C(3) << 29);
    params.on_failure = XEP_ON_FAILURE_MASK;
    assert_int_equal(xep_buffer_size(&params, 1024, &masked), XEP_OK);
    assert_in_range(masked.bytes, UINT64_C(7) << 30, UINT64_C(8) << 30);
}

/* Ranks of one node, or each on one of its own. */
static double memory_of(uint32_t nranks, uint32_t nnodes, const xep_buffer_params_t *params)
{
    enum { MOST = 512 };
    uint32_t node[MOST], first_expert[MOST + 1], words[3 * MOST + 1];
    const xep_cost_sizes_t sizes = {.topk = params->topk,
                                    .slots = params->slots,
                                    .scales = params->scales,
                                    .tokens = params->tokens,
                                    .recv_rows = params->recv_rows,
                                    .row_bytes = params->hidden,
                                    .sum_bytes = 2 * (uint64_t)params->hidden,
                                    .by_selection = strcmp(params->mode, "ll") == 0,
                                    .first_expert = first_expert};
    xep_cost_map_t map;

    for (uint32_t r = 0; r <= nranks; r++) first_expert[r] = params->experts / nranks * r;
    for (uint32_t r = 0; r < nranks; r++) node[r] = nnodes == 1 ? 0 : r;
    xep_cost_make_map(&map, nranks, nnodes, node, words);
    return xep_cost_memory(&map, XEP_COST_FLAT, &sizes, 0);
}

static void assert_memory(double found, uint64_t bytes)
{
    if (fabs(found - (double)bytes) > 0.005 * (double)bytes) fail_msg("%.0f, a buffer has %.0f", found, (double)bytes);
}

/* But for words of the core, that are a few lines for each rank. */
static void check_memory(const char *mode)
{
    xep_buffer_params_t params = XEP_BUFFER_PARAMS_INIT;
    xep_buffer_size_t size = XEP_BUFFER_SIZE_INIT;

    params.mode = mode;
    params.dtype = XEP_E4M3;
    params.experts = 1024;
    params.topk = 8;
    params.hidden = 7168;
    params.scales = 56;
    params.tokens = 128;
    params.recv_rows = 1000;
    params.slots = 3;
    for (uint32_t nranks = 2; nranks <= 512; nranks *= 16) {
        assert_int_equal(xep_buffer_size(&params, nranks, &size), XEP_OK);
        assert_memory(memory_of(nranks, 1, &params), size.node_bytes);
        if (nranks == 2) assert_memory(memory_of(nranks, nranks, &params), size.bytes);
    }
}

TEST(memory_is_that_of_a_buffer)
{
    check_memory("normal");
    check_memory("ll");
}
