/* SPDX-License-Identifier: BSD-3-Clause */

#include "cost_model.h"

#include <math.h>

static double most(double a, double b)
{
    return a > b ? a : b;
}

/* ---- paths ---- */

int xep_cost_has_locals(const xep_shape_t *shape)
{
    uint32_t n = 0;
    while (n < shape->nodes && shape->node_ranks[n] == 1) n++;
    return n < shape->nodes;
}

/*
 * A rank has the upstream ranks of other nodes whose place is its own, modulo the ranks of its node: place 0 of the
 * smallest node has most.
 */
static uint32_t count_upstreams(const xep_shape_t *shape)
{
    uint32_t least = shape->nranks, upstreams = 0;
    for (uint32_t n = 0; n < shape->nodes; n++)
        if (shape->node_ranks[n] < least) least = shape->node_ranks[n];
    for (uint32_t n = 0; n < shape->nodes; n++) upstreams += (shape->node_ranks[n] + least - 1) / least;
    return upstreams - 1; /* its own node counts as one */
}

xep_shape_t xep_cost_shape_on(const xep_shape_t *shape, xep_cost_path_t path)
{
    xep_shape_t other = *shape;
    other.by_nodes = path == XEP_COST_NODES && shape->nodes > 1;
    other.upstreams = other.by_nodes ? count_upstreams(shape) : 0;
    return other;
}

/* ---- rows ---- */

double xep_cost_message_rows(const xep_traffic_t *traffic, double message_bytes)
{
    return most(1, floor(message_bytes / (double)traffic->sent_bytes));
}

/* By selection each selection counts as a token with one expert. */
void xep_cost_expect_flow(const xep_cost_map_t *map, const xep_shape_t *shape, const xep_traffic_t *traffic,
                          double message_bytes, xep_cost_flow_t *flow)
{
    const double tokens = (double)shape->tokens, rows = xep_cost_message_rows(traffic, message_bytes);
    const int each = traffic->by_selection;
    xep_cost_expect_rows(map, xep_cost_way(traffic), shape->first_expert, each ? 1 : shape->topk,
                         each ? tokens * shape->topk : tokens, rows, flow);
}

/* ---- bytes and messages ---- */

/* In a combine sums go back to the ranks that have sent rows. */
static void turn_back(xep_cost_flow_t *flow)
{
    const xep_cost_flow_t there = *flow;
    flow->sent = there.came;
    flow->sent_messages = there.came_messages;
    flow->came = there.sent;
    flow->came_messages = there.sent_messages;
}

void xep_cost_find_load(const xep_cost_map_t *map, xep_cost_operation_t operation, const xep_traffic_t *traffic,
                        const xep_cost_flow_t *flow, uint32_t rank, xep_cost_load_t *load_p)
{
    const double ranks = xep_cost_node_ranks(map, map->node[rank]), row = (double)traffic->row_bytes,
                 sent = (double)traffic->sent_bytes;
    const double peers = traffic->messages_by_nodes ? map->nnodes - 1.0 : map->nranks - ranks;
    const double bytes = peers * (double)traffic->message_bytes;
    xep_cost_flow_t way = *flow;

    if (operation == XEP_COST_COMBINE) turn_back(&way);
    xep_cost_load_t load = {.near_rows = traffic->pulled ? way.taken : way.stored + way.passed,
                            .near_messages = traffic->messages * (ranks - 1),
                            .sent_rows = way.sent,
                            .sent_bytes = way.sent * sent + bytes,
                            .sent_messages = way.sent_messages + peers * traffic->messages,
                            .came_rows = way.came,
                            .came_bytes = way.came * sent + bytes,
                            .came_messages = way.came_messages + peers * traffic->messages};
    load.near_bytes = load.near_rows * row;
    /* a rank that pulls copies from its local ranks' memory or its own: nobody stores any for it */
    if (traffic->pulled) load.copied = way.picked * row;
    else {
        const double passed = way.kept + way.passed;
        load.passed = passed * row;
        load.copied = (way.own + way.stored + passed) * row;
    }
    if (operation == XEP_COST_COMBINE) load.copied += way.came * sent;
    *load_p = load;
}

/* ---- time ---- */

static double time_of(double bytes, double rate)
{
    return rate > 0 ? bytes / rate : 0;
}

/* Of one rank, and of all ranks of a node together. */
typedef struct busy {
    double sent, came, copied, passed;
    double network, memory, passing; /* s */
} busy_t;

static void add_load(busy_t *node, const xep_cost_load_t *load, const xep_cost_rates_t *rates)
{
    const double messages = (load->sent_messages + load->came_messages) * rates->message;
    node->sent += load->sent_bytes;
    node->came += load->came_bytes;
    node->copied += load->copied - load->passed;
    node->passed += load->passed;
    node->network =
        most(node->network, time_of(most(load->sent_bytes, load->came_bytes), rates->rank_network) + messages);
    node->memory = most(node->memory, time_of(load->copied - load->passed, rates->rank_memory));
    node->passing = most(node->passing, time_of(load->passed, rates->rank_memory));
}

static busy_t node_busy(const xep_cost_map_t *map, xep_cost_operation_t operation, const xep_traffic_t *traffic,
                        const xep_cost_rates_t *rates, const xep_cost_flow_t *flow, uint32_t node)
{
    busy_t busy = {0};
    for (uint32_t i = map->first[node]; i < map->first[node + 1]; i++) {
        xep_cost_load_t load;
        xep_cost_find_load(map, operation, traffic, &flow[map->ranks[i]], map->ranks[i], &load);
        add_load(&busy, &load, rates);
    }
    busy.network = most(busy.network, time_of(most(busy.sent, busy.came), rates->node_network));
    busy.memory = most(busy.memory, time_of(busy.copied, rates->node_memory));
    busy.passing = most(busy.passing, time_of(busy.passed, rates->node_memory));
    return busy;
}

void xep_cost_find_time(const xep_cost_map_t *map, xep_cost_operation_t operation, const xep_traffic_t *traffic,
                        const xep_cost_rates_t *rates, const xep_cost_flow_t *flow, xep_cost_time_t *time_p)
{
    xep_cost_time_t time = {.rounds = map->nnodes > 1 ? traffic->rounds * rates->latency : 0};
    double travel;

    for (uint32_t node = 0; node < map->nnodes; node++) {
        const busy_t busy = node_busy(map, operation, traffic, rates, flow, node);
        if (busy.network > time.network) time.node = node;
        time.network = most(time.network, busy.network);
        time.memory = most(time.memory, busy.memory);
        time.passed = most(time.passed, busy.passing);
    }
    if (operation == XEP_COST_DISPATCH && !traffic->pulled) travel = most(time.network, time.memory + time.passed);
    else travel = most(time.network, time.passed) + time.memory;
    time.seconds = travel + time.rounds;
    *time_p = time;
}
