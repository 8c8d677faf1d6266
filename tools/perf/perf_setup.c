/* SPDX-License-Identifier: BSD-3-Clause */

/* The shape, the memory, the buffer and the inputs of a run. */

#include "perf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "oracle_alloc.h"
#include "oracle_payloads.h"
#include "perf_by_hand.h"
#include "perf_cuda.h"
#include "perf_machine.h"
#include "perf_ops.h"
#include "perf_say.h"

/* ---- where the ranks are ------------------------------------------------------------ */

/* Ranks of one machine share its memory, and only if all do their clocks can be compared. */
static void find_machines(perf_t *perf)
{
    const uint64_t own = perf_machine_id();
    uint64_t *all = perf_gather(perf, &own, sizeof own);

    perf->host_ranks = 0;
    for (uint32_t rank = 0; rank < perf->info.nranks; rank++) perf->host_ranks += all[rank] == own;
    perf->one_clock = perf->host_ranks == perf->info.nranks;
    free(all);
}

/* The smallest value of any rank. */
static uint64_t agree_least(perf_t *perf, uint64_t least)
{
    uint64_t *all = perf_gather(perf, &least, sizeof least);

    for (uint32_t rank = 0; rank < perf->info.nranks; rank++)
        if (all[rank] < least) least = all[rank];
    free(all);
    return least;
}

/* ---- memory ------------------------------------------------------------------------- */

/* The next piece of the memory, NULL while it is only being measured. No two arrays share a line. */
static void *carve(perf_t *perf, size_t bytes)
{
    const size_t at = perf->memory.bytes;

    perf->memory.bytes += perf_line_up(bytes);
    return perf->memory.base != NULL ? (char *)perf->memory.base + at : NULL;
}

/* The limit stores and sums in it, and experts write outputs there: never both at once. */
static size_t area_bytes(const perf_t *perf)
{
    const size_t placed = perf_line_up(perf->placed_bytes) + perf->placed_scales,
                 summed = perf_line_up(perf->sum_bytes);
    const size_t sent = perf->sent_rows * (placed > summed ? placed : summed);
    const size_t received = perf->options.copy_in || perf->options.check ? perf->recv_rows * perf->sum_bytes : 0;

    return sent > received ? sent : received;
}

/* Walked twice, to measure and to place, as the kit does it. */
static void lay_out(perf_t *perf)
{
    const uint64_t tokens = perf->tokens;

    perf->memory.bytes = 0;
    perf->x = carve(perf, tokens * perf->row_bytes);
    perf->out = carve(perf, tokens * perf->sum_bytes * perf->options.slots);
    /* not in one place: sums that go past the caches would leave it cold for those that do not */
    for (int streaming = 0; streaming < 2; streaming++) {
        perf->limit_sums[streaming] = carve(perf, tokens * perf->sum_bytes);
        perf->limit_rows[streaming] = carve(perf, perf_limit_taken_bytes(perf));
        if (perf->options.peer) perf->peer_sums[streaming] = carve(perf, tokens * perf->sum_bytes);
    }
    perf->area = carve(perf, area_bytes(perf));
    perf->idx = carve(perf, tokens * perf->options.topk * sizeof *perf->idx);
    perf->weights = carve(perf, tokens * perf->options.topk * sizeof *perf->weights);
    perf->scales = carve(perf, tokens * perf->scale_bytes);
    if (!perf->shape.nscales) perf->scales = NULL;
    for (uint32_t i = 0; i < perf->shape.npayloads; i++) {
        perf->payloads[i] = perf->options.payloads[i];
        perf->payloads[i].data = carve(perf, tokens * perf->payloads[i].bytes);
    }
    if (perf->shape.npayloads != 0) carve(perf, perf->placed_scales); /* the limit reads as much behind the last row */
    if (!perf->options.check) return;
    perf->out_weights = carve(perf, tokens * perf->options.topk * sizeof *perf->out_weights);
    for (int which = 0; which < 2; which++) perf->bias[which] = carve(perf, tokens * perf->sum_bytes);
}

/* All of it touched, so that no operation meets a page for the first time; of bytes that are
 * common numbers in every type, as the limit sums what it has not stored yet. */
static const char *map_memory(perf_t *perf)
{
    const size_t bytes = perf_line_up(perf->memory.bytes + 1); /* a rank may have nothing at all */
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (base == MAP_FAILED) return "no private memory";
    madvise(base, bytes, MADV_HUGEPAGE);
    memset(base, 0x3e, bytes);
    perf->memory.base = base;
    lay_out(perf);
    perf->memory.bytes = bytes;
    return NULL;
}

/* ---- shape -------------------------------------------------------------------------- */

static void set_types(perf_t *perf)
{
    perf->shape = perf_shape_of(&perf->options);
    perf->row_bytes = perf->options.hidden * xep_dtype_size(perf->shape.dtype);
    perf->scale_bytes = perf->shape.nscales * sizeof *perf->scales;
    perf->sum_bytes = perf->options.hidden * xep_dtype_size(perf->shape.combine_dtype);
    perf->placed_bytes = oracle_received_bytes(&perf->shape);
    perf->placed_scales = oracle_words_beside(&perf->shape) * sizeof *perf->scales;
}

/* All ranks make the routing of all ranks: they need it to check what arrives. */
static int make_routing(perf_t *perf, uint64_t seed, uint64_t tokens, char *why, size_t why_bytes)
{
    oracle_routing_params_t params = perf_routing_of(&perf->options, perf->info.nranks, tokens);

    params.seed = seed;
    oracle_routing_destroy(perf->routing);
    perf->routing = NULL;
    if (oracle_routing_create(&params, &perf->routing, why, why_bytes)) return -1;
    perf->shape.routing = perf->routing;
    perf->shape.room = perf->routing->tokens ? perf->routing->tokens : 1;
    perf->tokens = perf->routing->tokens_of[perf->info.rank];
    return 0;
}

/* How many rows go where. With more seeds to come, as many as there can be. */
static void count_rows(perf_t *perf)
{
    const uint32_t nranks = perf->info.nranks;
    const int by_expert = perf->options.by_expert;
    const uint64_t most_copies = perf->options.topk < nranks || by_expert ? perf->options.topk : nranks;

    oracle_traffic_count(perf->routing, perf->rank_rows, &perf->traffic);
    perf->recv_rows = perf->traffic.most_rows;
    perf->sent_rows = 0;
    for (uint32_t to = 0; to < nranks; to++) perf->sent_rows += perf->rank_rows[(size_t)perf->info.rank * nranks + to];
    if (by_expert) {
        perf->recv_rows = perf->traffic.most_selections;
        perf->sent_rows = perf->tokens * most_copies;
    }
    if (perf->options.pressure) {
        perf->recv_rows = nranks * perf->routing->tokens * (by_expert ? most_copies : 1);
        perf->sent_rows = perf->tokens * most_copies;
    }
}

void perf_buffer_params(const perf_t *perf, int in_pieces, xep_buffer_params_t *params_p)
{
    xep_buffer_params_t params = XEP_BUFFER_PARAMS_INIT;

    params.mode = perf->options.mode;
    params.experts = (uint32_t)perf->options.experts;
    params.owners = perf->routing->owners;
    params.topk = (uint32_t)perf->options.topk;
    params.hidden = perf->shape.hidden;
    params.scales = perf_scales_of(&perf->shape);
    params.tokens = perf->routing->tokens ? perf->routing->tokens : 1;
    params.recv_rows = perf->recv_rows ? perf->recv_rows : 1;
    if (perf->options.padded) params.recv_rows = 0; /* all of them: of what is padding, nothing is ever touched */
    params.pass_rows = perf->options.pass_rows;
    params.dtype = perf->shape.dtype;
    params.combine_dtype = perf->shape.combine_dtype;
    params.slots = (uint32_t)perf->options.slots + 1; /* one more: the handle that --cached uses */
    params.threads = (uint32_t)perf->options.threads;
    params.multiprocessors = perf->options.cuda ? (uint32_t)perf->options.sms : 0;
    params.memory = perf->options.cuda ? XEP_MEMORY_CUDA : XEP_MEMORY_HOST;
    if (perf->options.in_place) params.flags = XEP_BUFFER_SEND_MEMORY;
    if (in_pieces) {
        params.recv_rows = perf->options.recv_rows;
        params.slots = 1;
        params.flags = XEP_BUFFER_PIECES;
    }
    *params_p = params;
}

static xep_status_t add_buffer(const perf_t *perf, int in_pieces, uint64_t *bytes_p)
{
    xep_buffer_size_t size = XEP_BUFFER_SIZE_INIT;
    xep_buffer_params_t params;

    perf_buffer_params(perf, in_pieces, &params);
    if (perf->options.padded) params.recv_rows = 2 * perf->recv_rows + 1;
    xep_status_t status = xep_buffer_size(&params, perf->info.nranks, &size);
    if (status == XEP_OK) *bytes_p += perf->info.nnodes == 1 ? size.node_bytes : size.bytes;
    return status;
}

/* Bytes a shape takes of this rank's machine for this rank. What inputs and outputs alone
 * put beyond the budget is not worth routing token by token. */
static xep_status_t need_of(perf_t *perf, uint64_t budget, uint64_t *bytes_p)
{
    xep_status_t status;

    *bytes_p = perf->routing->tokens * (perf->row_bytes + perf->sum_bytes);
    if (*bytes_p > budget) return XEP_OK;
    count_rows(perf);
    lay_out(perf);
    *bytes_p = perf->memory.bytes + perf_limit_bytes(perf);
    status = add_buffer(perf, 0, bytes_p);
    return status != XEP_OK || perf->options.recv_rows == 0 ? status : add_buffer(perf, 1, bytes_p);
}

/*
 * Halves the tokens until they fit the budget, unless the user said how many. NULL or a complaint. Each step makes the
 * routing anew, as it is drawn for a number of tokens. need_of() leaves the sizes of the last try in perf.
 */
static const char *fit(perf_t *perf, uint64_t budget, char *why, size_t why_bytes)
{
    const int fixed = perf->options.tokens || perf->options.route.kind == ORACLE_ROUTE_FILE;
    uint64_t need;

    for (;;) {
        const uint64_t tokens = perf->routing->tokens;
        if (need_of(perf, budget, &need) != XEP_OK) return xep_last_error();
        if (need <= budget || (!fixed && tokens == 1)) return NULL;
        if (fixed) break;
        if (make_routing(perf, perf->options.seed, tokens / 2, why, why_bytes)) return why;
    }
    snprintf(why, why_bytes,
             "not enough memory for %" PRIu64
             " tokens a rank: %.1f GiB or more needed (%.1f are free; try fewer --tokens)",
             perf->routing->tokens, (double)need / 0x1p30, (double)budget / 0x1p30);
    return why;
}

/* All ranks come to the same number of tokens: the least that any of them has memory for. */
static void choose_shape(perf_t *perf)
{
    const uint64_t budget = perf_free_memory() / 10 * 8 / perf->host_ranks;
    const int from_file = perf->options.route.kind == ORACLE_ROUTE_FILE;
    const uint64_t wanted = perf_tokens_of(&perf->options);
    char why[512];

    perf_stop_if(perf, make_routing(perf, perf->options.seed, wanted, why, sizeof why) ? why : NULL, PERF_EXIT_USAGE);
    perf_stop_if(perf, fit(perf, budget, why, sizeof why), PERF_EXIT_FAILED);
    const uint64_t tokens = agree_least(perf, perf->routing->tokens);
    if (wanted == tokens || from_file) return;
    perf_say(perf, "%" PRIu64 " tokens a rank, not %d: %.1f GiB are free for each rank", tokens, PERF_TOKENS,
             (double)budget / 0x1p30);
    make_routing(perf, perf->options.seed, tokens, why, sizeof why);
    count_rows(perf);
    lay_out(perf);
}

/* ---- all together -------------------------------------------------------------------- */

/*
 * Of ranks that are not mapped outputs are encoded, where combine has a cast; sums have another order where rows go
 * once to each node.
 */
static void ask_peers(perf_t *perf, const xep_buffer_info_t *info)
{
    const uint32_t nranks = perf->info.nranks;

    perf->encoded_from = oracle_alloc(nranks);
    perf->nodes = oracle_alloc(nranks * sizeof *perf->nodes);
    for (uint32_t rank = 0; rank < nranks; rank++) {
        xep_peer_info_t peer = XEP_PEER_INFO_INIT;
        perf_must(perf, xep_group_peer(perf->group, rank, &peer));
        perf->encoded_from[rank] = !peer.mapped;
        perf->nodes[rank] = peer.node;
    }
    perf->shape.encoded_from = perf->encoded_from;
    if (info->path == XEP_PATH_NODES) perf->shape.node = perf->nodes;
}

/* How many ranks are mapped is told in the report: the least of all, as they may differ. */
static void open_buffer(perf_t *perf)
{
    xep_buffer_info_t info = XEP_BUFFER_INFO_INIT;
    xep_buffer_params_t params;

    perf_buffer_params(perf, 0, &params);
    perf_must(perf, xep_buffer_create(perf->group, &params, &perf->buffer));
    perf_must(perf, xep_buffer_query(perf->buffer, &info));
    perf->mapped = (uint32_t)agree_least(perf, info.mapped_peers);
    ask_peers(perf, &info);
}

/* All inputs of a rank are functions of the seed, so no rank has to send its data to those that check it. */
void perf_fill_inputs(perf_t *perf, uint64_t payload)
{
    perf->shape.payload = payload;
    oracle_fill_inputs(&perf->shape, perf->info.rank, perf->x, perf->idx, perf->weights, perf->scales);
    for (uint32_t i = 0; i < perf->shape.npayloads; i++)
        for (uint64_t token = 0; token < perf->tokens; token++)
            oracle_fill_payload(&perf->shape, i, perf->info.rank, token,
                                (char *)perf->payloads[i].data + token * perf->payloads[i].bytes);
    perf_put_inputs(perf);
}

/*
 * Another routing of the same size: the buffer and all memory stay, and with it the owners, which --owners greedy makes
 * of the loads of a seed.
 */
void perf_reseed(perf_t *perf, uint64_t seed)
{
    char why[512];
    uint32_t *owners = perf->routing->owners;

    perf->routing->owners = NULL;
    const int ret = make_routing(perf, seed, perf->routing->tokens, why, sizeof why);
    perf_stop_if(perf, ret ? why : NULL, PERF_EXIT_FAILED);
    free(perf->routing->owners);
    perf->routing->owners = owners;
    perf_fill_inputs(perf, seed);
}

/* In the order in which each needs what came before. */
void perf_setup(perf_t *perf)
{
    char text[256];

    find_machines(perf);
    set_types(perf);
    perf->rank_rows = oracle_alloc((size_t)perf->info.nranks * perf->info.nranks * sizeof *perf->rank_rows);
    choose_shape(perf);
    /* by rank 0, which has made the routing of all, when all have read theirs */
    const int fails = perf->options.record != NULL && perf->info.rank == 0 &&
                      oracle_routing_write(perf->routing, perf->options.record, text, sizeof text);
    perf_stop_if(perf, fails ? text : NULL, PERF_EXIT_FAILED);
    perf_stop_if(perf, map_memory(perf), PERF_EXIT_FAILED);
    perf_cuda_open(perf);
    perf_fill_inputs(perf, perf->options.seed);
    perf->handle = oracle_alloc(perf->options.slots * sizeof *perf->handle);
    perf->request = oracle_alloc(perf->options.slots * sizeof *perf->request);
    open_buffer(perf);
}

void perf_teardown(perf_t *perf)
{
    xep_buffer_destroy(perf->buffer);
    free(perf->handle);
    free(perf->request);
    free(perf->rank_rows);
    free(perf->encoded_from);
    free(perf->nodes);
    free(perf->wait_ns);
    free(perf->waits);
    perf_peer_close(perf->peer);
    perf_cuda_close(perf);
    if (perf->memory.base != NULL) munmap(perf->memory.base, perf->memory.bytes);
    oracle_routing_destroy(perf->routing);
}
