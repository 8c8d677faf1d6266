/* SPDX-License-Identifier: BSD-3-Clause */

/* What paths cost in bytes and time, with what the modes tell of their traffic: worked out by hand. */

#include <math.h>
#include <string.h>

#include "cost_model.h"
#include "plugin_loader.h"
#include "unit.h"

static const uint32_t two_by_two[] = {0, 0, 1, 1}, eight_experts[] = {0, 2, 4, 6, 8}, places[] = {0, 1, 0, 1},
                      pairs[] = {2, 2};
static const xep_shape_t shape_of_two_by_two = {.nranks = 4,
                                                .nodes = 2,
                                                .node = two_by_two,
                                                .place = places,
                                                .node_ranks = pairs,
                                                .experts = 8,
                                                .first_expert = eight_experts,
                                                .local_experts = 2,
                                                .most_experts = 2,
                                                .topk = 2,
                                                .hidden = 500,
                                                .elem_bytes = 2,
                                                .combine_elem_bytes = 1,
                                                .slots = 2,
                                                .tokens = 100};

enum { MESSAGE_BYTES = 3000 };

typedef struct told {
    xep_traffic_t of[XEP_COST_OPERATIONS];
} told_t;

/* What a mode of this tree tells of a shape on a path. */
static told_t ask(const char *mode, const xep_shape_t *shape, xep_cost_path_t path)
{
    const xep_shape_t taken = xep_cost_shape_on(shape, path);
    xep_config_t config;
    xep_plugin_ref_t ref;
    told_t told;

    assert_int_equal(xep_config_read(&config), XEP_OK);
    assert_int_equal(xep_plugin_load(&config, mode, XEP_MEMORY_HOST, &ref), XEP_OK);
    ref.plugin->traffic(&taken, &told.of[XEP_COST_DISPATCH], &told.of[XEP_COST_COMBINE]);
    xep_plugin_unload(&ref);
    return told;
}

/* Rank 0 sends 100 tokens to both ranks of the other node; nothing else moves. */
static void flow_of_two_by_two(const xep_cost_map_t *map, const xep_traffic_t *traffic, xep_cost_flow_t flow[4])
{
    static const uint32_t ranks[] = {2, 3};
    uint32_t to[4] = {0};
    xep_cost_count_t count = {.map = map,
                              .path = xep_cost_way(traffic),
                              .by_selection = traffic->by_selection,
                              .message_rows = xep_cost_message_rows(traffic, MESSAGE_BYTES),
                              .flow = flow,
                              .to = to};

    memset(flow, 0, 4 * sizeof *flow);
    for (int t = 0; t < 100; t++) xep_cost_count_token(&count, 0, ranks, 2);
    xep_cost_count_end(&count, 0);
}

static xep_cost_load_t load_of(const told_t *told, xep_cost_operation_t operation, uint32_t rank)
{
    uint32_t words[2 * 4 + 3];
    xep_cost_flow_t flow[4];
    xep_cost_load_t load;
    xep_cost_map_t map;

    xep_cost_make_map(&map, 4, 2, two_by_two, words);
    flow_of_two_by_two(&map, &told->of[operation], flow);
    xep_cost_find_load(&map, operation, &told->of[operation], &flow[rank], rank, &load);
    return load;
}

static void assert_close(double found, double wanted)
{
    if (fabs(found - wanted) > 1e-9 * fabs(wanted)) fail_msg("%.12g, not %.12g", found, wanted);
}

/* A row of a dispatch is 1000 bytes, its token and two selections: 1000 + 4 + 2 * 12; while it passes, + 2 * 8. */
TEST(bytes_and_messages)
{
    enum { ROW = 1028, PASSED = 1020, WORD = 40, FLAT_RECORD = 128, NODES_RECORD = 192 };
    const told_t flat = ask("normal", &shape_of_two_by_two, XEP_COST_FLAT),
                 nodes = ask("normal", &shape_of_two_by_two, XEP_COST_NODES);

    xep_cost_load_t load = load_of(&flat, XEP_COST_DISPATCH, 0);
    assert_close(load.sent_rows, 200);
    assert_close(load.sent_bytes, 200 * ROW + 2 * (2 * WORD + FLAT_RECORD));
    assert_close(load.sent_messages, 2 * 50 + 2 * 2); /* two rows of 1028 bytes in 3000 */
    assert_close(load.near_messages, 2);
    assert_close(load.copied, 0);
    load = load_of(&flat, XEP_COST_COMBINE, 0);
    assert_close(load.came_bytes, 200 * 500 + 2 * 2 * WORD);
    assert_close(load.came_messages, 2 * 17 + 2 * 2); /* six rows of 500 */
    assert_close(load.copied, 200 * 500);

    load = load_of(&nodes, XEP_COST_DISPATCH, 0);
    assert_close(load.sent_bytes, 100 * PASSED + 2 * WORD + NODES_RECORD);
    assert_close(load.sent_messages, 50 + 2);
    load = load_of(&nodes, XEP_COST_DISPATCH, 2);
    assert_close(load.passed, 200 * ROW); /* one for rank 3, one that it keeps */
    assert_close(load.near_rows, 100);
    load = load_of(&nodes, XEP_COST_COMBINE, 0);
    assert_close(load.copied, 100 * 500); /* one sum of the other node for each token */
    assert_close(load.came_bytes, 100 * 500 + 2 * 2 * WORD);
}

TEST(a_row_is_never_more_than_one_message)
{
    const told_t told = ask("normal", &shape_of_two_by_two, XEP_COST_FLAT);
    assert_close(xep_cost_message_rows(&told.of[XEP_COST_DISPATCH], 700), 1);
    assert_close(xep_cost_message_rows(&told.of[XEP_COST_COMBINE], 400), 1);
}

static xep_cost_time_t time_of(xep_cost_path_t path, xep_cost_operation_t operation, const xep_cost_rates_t *rates)
{
    const told_t told = ask("normal", &shape_of_two_by_two, path);
    xep_cost_flow_t flow[4];
    xep_cost_time_t found;
    uint32_t words[2 * 4 + 3];
    xep_cost_map_t map;

    xep_cost_make_map(&map, 4, 2, two_by_two, words);
    flow_of_two_by_two(&map, &told.of[operation], flow);
    xep_cost_find_time(&map, operation, &told.of[operation], rates, flow, &found);
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

/*
 * In ll a dispatch sends rows without metadata, and a head and a notice before and behind them, to each rank or to one
 * of a node; receivers copy rows when they are there. Its combine is flat.
 */
TEST(by_selection)
{
    enum { ROW = 1024, HEAD = 100 * 2 * 4 + 64 };

    for (xep_cost_path_t path = XEP_COST_FLAT; path < XEP_COST_PATHS; path++) {
        const told_t told = ask("ll", &shape_of_two_by_two, path);
        const double receivers = path == XEP_COST_FLAT ? 2 : 1;
        xep_cost_load_t load = load_of(&told, XEP_COST_DISPATCH, 0);
        assert_int_equal(xep_cost_way(&told.of[XEP_COST_DISPATCH]), path);
        assert_int_equal(xep_cost_way(&told.of[XEP_COST_COMBINE]), XEP_COST_FLAT);
        assert_close(load.sent_rows, receivers * 100);
        assert_close(load.sent_bytes, receivers * (100 * ROW + HEAD));
        assert_close(load.copied, 0);
        load = load_of(&told, XEP_COST_DISPATCH, 2);
        assert_close(load.copied, 100 * ROW);
        assert_close(load.passed, 0);
        assert_close(load_of(&told, XEP_COST_COMBINE, 0).came_rows, 200); /* a row for each selection */
    }
}

/* Room for all, as long as it is little; for what 512 MiB hold; for an even load and six deviations. */
static uint64_t recv_ring(uint64_t tokens, uint32_t nranks, uint32_t topk, uint32_t experts)
{
    static uint32_t first_expert[8193], node[8192], ones[8192];
    const xep_shape_t shape = {.nranks = nranks,
                               .nodes = nranks,
                               .node = node,
                               .node_ranks = ones,
                               .experts = experts,
                               .first_expert = first_expert,
                               .most_experts = experts / nranks,
                               .topk = topk,
                               .hidden = 14336,
                               .elem_bytes = 1,
                               .slots = 2,
                               .tokens = tokens};

    for (uint32_t r = 0; r < nranks; r++) node[r] = r, ones[r] = 1, first_expert[r + 1] = experts / nranks * (r + 1);
    return ask("ll", &shape, XEP_COST_FLAT).of[XEP_COST_DISPATCH].pass_rows / nranks;
}

TEST(recv_rings)
{
    assert_int_equal(recv_ring(128, 64, 1, 128 * 64), 128);
    assert_int_equal(recv_ring(128, 256, 1, 256), 36);
    assert_int_equal(recv_ring(128, 256, 98, 256), 49 + 42 + 6);
    assert_int_equal(recv_ring(128, 1024, 800, 1024), 128);
    assert_int_equal(recv_ring(128, 4096, 128, 4096), 4 + 12 + 6);
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
