/* SPDX-License-Identifier: BSD-3-Clause */

#include "cost_model.h"

#include <math.h>

/* As the modes have them (plugins/normal, plugins/ll): heaps, records and heads, what goes beside rows. */
#define INBOX_BYTES (512.0 * 1024 * 1024)

enum {
    LINE = 64,
    WORDS = 2,       /* that ranks tell each other in an operation: record and done; ready and read */
    WORD_BYTES = 40, /* a word, and the line that comes with it */
    RECORD = 96,     /* before its counts */
    TAIL = 16,       /* by nodes, behind them */
    COUNT = 4,
    INDEX = 8, /* bytes of a selection, the wider of the types; while it passes, PASSED_INDEX */
    PASSED_INDEX = 4,
    WEIGHT = 4,
    TOKEN = 4,
    SCALE = 4,
    NOTICE = 64, /* of ll, its word included */
    CODED = 64   /* LogFMT may add one byte to so many */
};

static double round_up(double bytes)
{
    return ceil(bytes / LINE) * LINE;
}

static double most(double a, double b)
{
    return a > b ? a : b;
}

/* Of a row: its scales, its token, and for each of the topk selections an expert and a weight. */
static double metadata_bytes(const xep_cost_sizes_t *sizes, double index)
{
    return TOKEN + (double)sizes->scales * SCALE + sizes->topk * (index + WEIGHT);
}

/* Of a row as it is stored, and as it goes over the network. In ll with its scales alone: a head has the rest. */
static double row_bytes(const xep_cost_sizes_t *sizes, xep_cost_operation_t operation)
{
    if (operation == XEP_COST_COMBINE) return (double)sizes->sum_bytes;
    if (sizes->by_selection) return round_up((double)sizes->row_bytes + (double)sizes->scales * SCALE);
    return (double)sizes->row_bytes + metadata_bytes(sizes, INDEX);
}

static double sent_bytes(xep_cost_path_t path, const xep_cost_sizes_t *sizes, xep_cost_operation_t operation)
{
    if (path == XEP_COST_FLAT || sizes->by_selection) return row_bytes(sizes, operation);
    if (operation == XEP_COST_COMBINE) return (double)sizes->node_sum_bytes;
    return (double)sizes->row_bytes + metadata_bytes(sizes, PASSED_INDEX);
}

void xep_cost_message_rows(xep_cost_path_t path, const xep_cost_sizes_t *sizes, double rows[XEP_COST_OPERATIONS])
{
    for (xep_cost_operation_t operation = XEP_COST_DISPATCH; operation < XEP_COST_OPERATIONS; operation++)
        rows[operation] = most(1, floor((double)sizes->message_bytes / sent_bytes(path, sizes, operation)));
}

/* In a combine of ll every selection is a row, and so as a token of its own with one expert. */
void xep_cost_expect_flow(const xep_cost_map_t *map, xep_cost_path_t path, xep_cost_operation_t operation,
                          const xep_cost_sizes_t *sizes, xep_cost_flow_t *flow)
{
    const uint32_t *first = sizes->first_expert;
    const int each = sizes->by_selection && operation == XEP_COST_COMBINE;
    const double tokens = (double)sizes->tokens, selections = tokens * sizes->topk;
    double rows[XEP_COST_OPERATIONS];

    xep_cost_message_rows(path, sizes, rows);
    xep_cost_expect_rows(map, xep_cost_way(sizes, path, operation), first, each ? 1 : sizes->topk,
                         each ? selections : tokens, rows, flow);
    for (uint32_t rank = 0; rank < map->nranks; rank++)
        flow[rank].picked = selections * map->nranks * (first[rank + 1] - first[rank]) / first[map->nranks];
}

/*
 * Flat, a rank tells every rank its rows to each rank, and the selections of that rank's experts. By nodes it tells a
 * forwarder the selections of all experts.
 */
static double record_bytes(const xep_cost_map_t *map, xep_cost_path_t path, const xep_cost_sizes_t *sizes)
{
    if (path == XEP_COST_FLAT) return round_up(RECORD + COUNT * (map->nranks + (double)sizes->first_expert[1]));
    return round_up(RECORD + COUNT * (map->nranks + (double)sizes->first_expert[map->nranks]) + TAIL);
}

/* ---- bytes and messages ---- */

/* Words that a rank tells another one in an operation, with the bytes that go before: in ll a head, then its notice. */
static double words_of(const xep_cost_map_t *map, xep_cost_path_t path, xep_cost_operation_t operation,
                       const xep_cost_sizes_t *sizes, double *bytes_p)
{
    *bytes_p = WORDS * WORD_BYTES;
    if (operation == XEP_COST_COMBINE) return WORDS;
    if (sizes->by_selection) *bytes_p = (double)sizes->tokens * sizes->topk * COUNT + NOTICE;
    else *bytes_p += record_bytes(map, path, sizes);
    return WORDS;
}

/*
 * Of this rank over the network in one direction, and their bytes. By nodes a dispatch has them with forwarders alone;
 * a combine has them with all ranks on either path, as a reader waits for each owner.
 */
static double count_words(const xep_cost_map_t *map, xep_cost_path_t path, xep_cost_operation_t operation,
                          const xep_cost_sizes_t *sizes, uint32_t node, double *bytes_p)
{
    double peers = (double)map->nranks - xep_cost_node_ranks(map, node);
    if (path == XEP_COST_NODES && operation == XEP_COST_DISPATCH) peers = map->nnodes - 1.0;
    const double words = words_of(map, path, operation, sizes, bytes_p);
    *bytes_p *= peers;
    return peers * words;
}

/* In ll a receiver copies all rows that it gets, from its mates' memory or its own: nobody stores any for it. */
static void pull_rows(xep_cost_load_t *load, const xep_cost_flow_t *flow, double row)
{
    load->near_rows = flow->taken;
    load->passed = 0;
    load->copied = flow->picked * row;
}

void xep_cost_find_load(const xep_cost_map_t *map, xep_cost_path_t path, xep_cost_operation_t operation,
                        const xep_cost_sizes_t *sizes, const xep_cost_flow_t *flow, uint32_t rank,
                        xep_cost_load_t *load_p)
{
    const uint32_t node = map->node[rank];
    const double row = row_bytes(sizes, operation), sent = sent_bytes(path, sizes, operation);
    const double passed = flow->kept + flow->passed, own = flow->own + flow->stored;
    double word_bytes;
    const double words = count_words(map, path, operation, sizes, node, &word_bytes);
    xep_cost_load_t load = {.near_rows = flow->stored + flow->passed,
                            .near_messages = WORDS * (xep_cost_node_ranks(map, node) - 1.0),
                            .sent_rows = flow->sent,
                            .sent_messages = flow->sent_messages[operation],
                            .came_rows = flow->came,
                            .came_messages = flow->came_messages[operation]};

    /* a combine goes the way back: sums come to those who have sent rows */
    if (operation == XEP_COST_COMBINE) {
        load.sent_rows = flow->came;
        load.sent_messages = flow->came_messages[operation];
        load.came_rows = flow->sent;
        load.came_messages = flow->sent_messages[operation];
    }
    load.passed = passed * row;
    load.copied = (own + passed) * row + (operation == XEP_COST_COMBINE ? flow->sent * sent : 0);
    if (sizes->by_selection && operation == XEP_COST_DISPATCH) pull_rows(&load, flow, row);
    load.near_bytes = load.near_rows * row;
    load.sent_bytes = load.sent_rows * sent + word_bytes;
    load.came_bytes = load.came_rows * sent + word_bytes;
    load.sent_messages += words;
    load.came_messages += words;
    *load_p = load;
}

/* ---- memory ---- */

/* Ranks whose forwarder this one is. */
static double feeders_of(const xep_cost_map_t *map, uint32_t rank)
{
    const uint32_t own = xep_cost_node_ranks(map, map->node[rank]);
    double feeders = 0;
    for (uint32_t node = 0; node < map->nnodes; node++)
        if (node != map->node[rank]) feeders += (xep_cost_node_ranks(map, node) + own - 1 - map->place[rank]) / own;
    return feeders;
}

uint64_t xep_cost_inbox_rows(uint64_t tokens, double even, double row_bytes, double inboxes)
{
    double rows = most(ceil(even + 6 * sqrt(even) + 6), floor(INBOX_BYTES / (row_bytes * inboxes)));
    return rows < (double)tokens ? (uint64_t)rows : tokens;
}

/* Experts of the rank, or by nodes of the node, that has most. */
static double most_experts(const xep_cost_map_t *map, xep_cost_path_t path, const xep_cost_sizes_t *sizes)
{
    double found = sizes->first_expert[1];
    for (uint32_t node = 0; node < map->nnodes && path == XEP_COST_NODES; node++) {
        double experts = 0;
        for (uint32_t i = map->first[node]; i < map->first[node + 1]; i++)
            experts += sizes->first_expert[map->ranks[i] + 1] - sizes->first_expert[map->ranks[i]];
        found = most(found, experts);
    }
    return found;
}

/* Of ll: parcels of 2 * slots turns, its own and those of others; in a slot rows, their outputs, those that return. */
static double memory_of_ll(const xep_cost_map_t *map, xep_cost_path_t path, const xep_cost_sizes_t *sizes,
                           uint32_t rank)
{
    const double tokens = (double)sizes->tokens, selections = tokens * sizes->topk;
    const double parcel = tokens * row_bytes(sizes, XEP_COST_DISPATCH) + selections * (COUNT + WEIGHT);
    const double row = round_up((double)sizes->row_bytes) + (double)sizes->scales * SCALE + TOKEN + INDEX + WEIGHT;
    const double sum = round_up((double)sizes->sum_bytes), coded = sum + (double)sizes->sum_bytes / CODED;
    const double others = path == XEP_COST_FLAT ? map->nranks : feeders_of(map, rank);
    const double even =
        xep_cost_expect_tokens(tokens, most_experts(map, path, sizes), sizes->first_expert[map->nranks], sizes->topk);
    const double row_there = row_bytes(sizes, XEP_COST_DISPATCH);
    const double room = (double)xep_cost_inbox_rows(sizes->tokens, even, row_there, 2.0 * sizes->slots * others);
    const double inbox = room * row_there + selections * (COUNT + WEIGHT);
    double slot = (double)sizes->recv_rows * (row + sum) + 2 * (parcel + map->nranks * (double)NOTICE);

    if (map->nnodes > 1) slot += selections * coded + 2 * others * inbox;
    return sizes->slots * slot;
}

double xep_cost_memory(const xep_cost_map_t *map, xep_cost_path_t path, const xep_cost_sizes_t *sizes, uint32_t rank)
{
    if (sizes->by_selection) return memory_of_ll(map, path, sizes, rank);
    const double own = xep_cost_node_ranks(map, map->node[rank]), sum = round_up((double)sizes->sum_bytes);
    const double row = round_up((double)sizes->row_bytes), weights = (double)sizes->topk * WEIGHT;
    const double back = path == XEP_COST_FLAT ? sum : round_up((double)sizes->node_sum_bytes);
    const double far = path == XEP_COST_FLAT ? map->nranks - own : map->nnodes - 1.0;
    const double returned = (double)sizes->tokens * (far < sizes->topk ? far : sizes->topk);
    double slot = (double)sizes->recv_rows * (row + metadata_bytes(sizes, INDEX) + sum + weights);

    slot += returned * (back + weights) + map->nranks * (LINE + record_bytes(map, XEP_COST_FLAT, sizes));
    if (path == XEP_COST_NODES && map->nnodes > 1) {
        slot += (double)sizes->pass_rows * (row + metadata_bytes(sizes, PASSED_INDEX) + back + weights);
        slot += feeders_of(map, rank) * (LINE + record_bytes(map, path, sizes));
    }
    return sizes->slots * slot;
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

static busy_t node_busy(const xep_cost_map_t *map, xep_cost_path_t path, xep_cost_operation_t operation,
                        const xep_cost_sizes_t *sizes, const xep_cost_rates_t *rates, const xep_cost_flow_t *flow,
                        uint32_t node)
{
    busy_t busy = {0};
    for (uint32_t i = map->first[node]; i < map->first[node + 1]; i++) {
        xep_cost_load_t load;
        xep_cost_find_load(map, path, operation, sizes, &flow[map->ranks[i]], map->ranks[i], &load);
        add_load(&busy, &load, rates);
    }
    busy.network = most(busy.network, time_of(most(busy.sent, busy.came), rates->node_network));
    busy.memory = most(busy.memory, time_of(busy.copied, rates->node_memory));
    busy.passing = most(busy.passing, time_of(busy.passed, rates->node_memory));
    return busy;
}

/* A dispatch: records, then rows and the word behind them, in ll without records; a combine: rows and the word. */
static double rounds_of(xep_cost_operation_t operation, const xep_cost_sizes_t *sizes)
{
    return operation == XEP_COST_DISPATCH && !sizes->by_selection ? 2 : 1;
}

void xep_cost_find_time(const xep_cost_map_t *map, xep_cost_path_t path, xep_cost_operation_t operation,
                        const xep_cost_sizes_t *sizes, const xep_cost_rates_t *rates, const xep_cost_flow_t *flow,
                        xep_cost_time_t *time_p)
{
    xep_cost_time_t time = {.rounds = map->nnodes > 1 ? rounds_of(operation, sizes) * rates->latency : 0};
    double travel;

    for (uint32_t node = 0; node < map->nnodes; node++) {
        const busy_t busy = node_busy(map, path, operation, sizes, rates, flow, node);
        if (busy.network > time.network) time.node = node;
        time.network = most(time.network, busy.network);
        time.memory = most(time.memory, busy.memory);
        time.passed = most(time.passed, busy.passing);
    }
    if (operation == XEP_COST_DISPATCH && !sizes->by_selection) travel = most(time.network, time.memory + time.passed);
    else travel = most(time.network, time.passed) + time.memory;
    time.seconds = travel + time.rounds;
    *time_p = time;
}

/* ---- which path ---- */

/* On one node both paths are the same, and so take as long. */
static int has_company(const xep_cost_map_t *map)
{
    for (uint32_t node = 0; node < map->nnodes; node++)
        if (xep_cost_node_ranks(map, node) > 1) return 1;
    return 0;
}

xep_cost_path_t xep_cost_choose_path(const xep_cost_map_t *map, const xep_cost_time_t time[][XEP_COST_OPERATIONS])
{
    double seconds[XEP_COST_PATHS] = {0};
    for (int path = 0; path < XEP_COST_PATHS; path++)
        for (int operation = 0; operation < XEP_COST_OPERATIONS; operation++)
            seconds[path] += time[path][operation].seconds;
    return has_company(map) && seconds[XEP_COST_NODES] < seconds[XEP_COST_FLAT] ? XEP_COST_NODES : XEP_COST_FLAT;
}
