/* SPDX-License-Identifier: BSD-3-Clause */

/* The path and the room of a mode that nobody knows here: by what it tells of its traffic, and by nothing else. */

#include <string.h>

#include "path.h"
#include "unit.h"

/* Nodes of 4 and 2 ranks: a rank of the smaller one has two upstream ranks. */
static const uint32_t node[] = {0, 0, 0, 0, 1, 1}, place[] = {0, 1, 2, 3, 0, 1}, node_ranks[] = {4, 2},
                      first_expert[] = {0, 2, 4, 6, 8, 10, 12};

static xep_traffic_t dispatch_by_nodes, combine_by_nodes, dispatch_flat, combine_flat;

static void tell_traffic(const xep_shape_t *shape, xep_traffic_t *dispatch, xep_traffic_t *combine)
{
    *dispatch = shape->by_nodes ? dispatch_by_nodes : dispatch_flat;
    *combine = shape->by_nodes ? combine_by_nodes : combine_flat;
}

static const xep_plugin_t mode = {.name = "other", .can = XEP_CAN_NODES, .traffic = tell_traffic},
                          flat = {.name = "flat", .traffic = tell_traffic}, silent = {.name = "silent"};

void unit_before_each(void)
{
    dispatch_flat = combine_flat = (xep_traffic_t){.messages = 1, .rounds = 1, .row_bytes = 1000, .sent_bytes = 1000};
    dispatch_by_nodes = combine_by_nodes = dispatch_flat;
    dispatch_by_nodes.by_nodes = 1;
}

static xep_status_t choose(const xep_plugin_t *plugin, xep_path_t path, uint64_t pass_rows, xep_shape_t *shape)
{
    xep_config_t config;
    xep_buffer_params_t params = XEP_BUFFER_PARAMS_INIT;

    assert_int_equal(xep_config_read(&config), XEP_OK);
    config.net_rate = 1000000;
    config.memory_rate = 1000000000;
    params.path = path;
    params.tokens = 100;
    params.pass_rows = pass_rows;
    *shape = (xep_shape_t){.nranks = 6,
                           .nodes = 2,
                           .node = node,
                           .place = place,
                           .node_ranks = node_ranks,
                           .experts = 12,
                           .first_expert = first_expert,
                           .most_experts = 2,
                           .topk = 4,
                           .tokens = 100};
    return xep_path_choose(&config, &params, plugin, shape);
}

/* By nodes fewer rows cross the network; but not where they are that much longer, or copied so much slower. */
TEST(path_is_chosen_by_what_is_told)
{
    xep_shape_t shape;

    assert_int_equal(choose(&mode, XEP_PATH_AUTO, 0, &shape), XEP_OK);
    assert_int_equal(shape.by_nodes, 1);
    assert_int_equal(shape.upstreams, 2);
    dispatch_by_nodes.sent_bytes = 5000;
    assert_int_equal(choose(&mode, XEP_PATH_AUTO, 0, &shape), XEP_OK);
    assert_int_equal(shape.by_nodes, 0);
    assert_int_equal(shape.upstreams, 0);
    assert_int_equal(choose(&mode, XEP_PATH_NODES, 0, &shape), XEP_OK);
    assert_int_equal(shape.by_nodes, 1);
    dispatch_by_nodes.sent_bytes = 1000;
    dispatch_by_nodes.message_bytes = 1000 * 1000;
    assert_int_equal(choose(&mode, XEP_PATH_AUTO, 0, &shape), XEP_OK);
    assert_int_equal(shape.by_nodes, 0);
    dispatch_by_nodes.messages_by_nodes = 1; /* to one forwarder, in place of two or four ranks */
    dispatch_flat.message_bytes = 1000 * 1000;
    assert_int_equal(choose(&mode, XEP_PATH_AUTO, 0, &shape), XEP_OK);
    assert_int_equal(shape.by_nodes, 1);
}

TEST(a_mode_that_knows_no_nodes_has_one_path)
{
    xep_shape_t shape;

    assert_int_equal(choose(&flat, XEP_PATH_NODES, 0, &shape), XEP_OK);
    assert_int_equal(shape.by_nodes, 0);
    assert_int_equal(choose(&silent, XEP_PATH_NODES, 600, &shape), XEP_OK);
    assert_int_equal(shape.by_nodes, 0);
    assert_int_equal(shape.feed_rows, 0);
}

/* Of all sources together: two upstream ranks, or flat six ranks. Room for all is the tokens, flat 0. */
TEST(room_is_what_is_told)
{
    const struct {
        xep_path_t path;
        uint64_t told, asked, feed_rows;
    } all[] = {{XEP_PATH_NODES, 0, 0, 100},  {XEP_PATH_NODES, 70, 0, 35},  {XEP_PATH_NODES, 1, 0, 1},
               {XEP_PATH_NODES, 70, 20, 10}, {XEP_PATH_NODES, 0, 20, 100}, {XEP_PATH_NODES, 900, 0, 100},
               {XEP_PATH_FLAT, 0, 0, 0},     {XEP_PATH_FLAT, 70, 0, 11},   {XEP_PATH_FLAT, 70, 20, 3},
               {XEP_PATH_FLAT, 0, 20, 0},    {XEP_PATH_FLAT, 900, 0, 0}};
    xep_shape_t shape;

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        dispatch_flat.pass_rows = dispatch_by_nodes.pass_rows = all[i].told;
        assert_int_equal(choose(&mode, all[i].path, all[i].asked, &shape), XEP_OK);
        if (shape.feed_rows != all[i].feed_rows) fail_msg("%zu: room for %u", i, (unsigned)shape.feed_rows);
    }
    assert_int_equal(choose(&mode, XEP_PATH_FLAT, 5, &shape), XEP_ERR_INVALID);
    assert_string_equal(xep_last_error(),
                        "invalid pass_rows: 5 (0, or at least 6: one of each rank that rows come from)");
    assert_int_equal(choose(&mode, XEP_PATH_NODES, 1, &shape), XEP_ERR_INVALID);
}

/* Without a group: by nodes where combines go so, too, and all others are upstream ranks; else flat, for all ranks. */
TEST(most_room_is_imagined)
{
    xep_buffer_params_t params = XEP_BUFFER_PARAMS_INIT;
    xep_shape_t shape;

    params.tokens = 100;
    dispatch_flat.pass_rows = 70;
    dispatch_by_nodes.pass_rows = 71;
    assert_int_equal(choose(&mode, XEP_PATH_FLAT, 0, &shape), XEP_OK);
    xep_path_imagine(&params, &mode, &shape);
    assert_int_equal(shape.by_nodes, 0);
    assert_int_equal(shape.feed_rows, 12);
    combine_by_nodes.by_nodes = 1;
    xep_path_imagine(&params, &mode, &shape);
    assert_int_equal(shape.by_nodes, 1);
    assert_int_equal(shape.upstreams, 5);
    assert_int_equal(shape.feed_rows, 15);
}
