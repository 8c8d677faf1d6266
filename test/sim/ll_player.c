/* SPDX-License-Identifier: BSD-3-Clause */

/* A rank that plays a script of the mode "ll": what the core does around a mode, in random order. */
#include <stdlib.h>
#include <string.h>

#include "ll_script.h"

static void fail(sim_rank_t *rank, const ll_call_t *call, const char *what, int64_t value)
{
    sim_fail(rank->world, "rank %u, call %u: %s: %lld, reason \"%s\"", rank->index, call->number, what, (long long)value, rank->reason);
}

/* ---- endings ---- */

static void slot_free(ll_player_t *player, ll_handle_t *handle)
{
    player->slot_used[handle->slot] = 0;
    handle->alive = 0;
}

/* What the user had is overwritten before the slot is used again: rows that are not written anew show. */
static void handle_release(sim_rank_t *rank, ll_handle_t *handle)
{
    ll_player_t *player = ll_player_of(rank);
    xep_recv_t *recv = &handle->recv;
    if (!player->script->unchecked) ll_check_recv(rank, handle->call, recv);
    memset(recv->x, 0xa5, recv->capacity * recv->x_stride);
    memset(recv->src_token, 0xa5, recv->capacity * sizeof(int32_t));
    memset(recv->topk_idx, 0xa5, recv->capacity * (recv->topk_idx_dtype == XEP_INT64 ? 8 : 4));
    memset(recv->topk_weights, 0xa5, recv->capacity * sizeof(float));
    if (recv->scales) memset(recv->scales, 0xa5, recv->capacity * recv->nscales * 4);
    slot_free(player, handle);
}

static void check_stats(sim_rank_t *rank, const ll_call_t *call, const ll_flight_t *flight)
{
    const ll_script_t *script = ll_script_of(rank);
    for (uint32_t e = 0; e <= rank->shape.local_experts; e++) {
        int64_t want = 1000 + (int64_t)e;
        int counted = call->expect == XEP_OK && flight->dispatch.expert_stats && e < rank->shape.local_experts;
        for (uint32_t s = 0; s < script->shape.nranks && counted; s++) want += (int64_t)ll_count(script, call, s, rank->shape.first_expert + e);
        if (flight->stats[e] != want) fail(rank, call, "statistics of an expert", e);
    }
}

static void dispatch_ended(sim_rank_t *rank, ll_handle_t *handle, ll_flight_t *flight)
{
    ll_player_t *player = ll_player_of(rank);
    const ll_call_t *call = flight->call;
    player->turn_done[call->turn] = 1;
    handle->alive = call->expect == XEP_OK;
    if (!handle->alive) slot_free(player, handle);
    if (call->expect == XEP_OK) ll_check_recv(rank, call, &handle->recv);
    check_stats(rank, call, flight);
    if (call->expect != XEP_ERR_MISMATCH && flight->rows != handle->recv.rows) fail(rank, call, "recv_rows_p", (int64_t)flight->rows);
    if (call->expect == XEP_ERR_OVERFLOW && call->arrangement[rank->index] != XEP_ROWS_BY_EXPERT_PADDED &&
        flight->rows != ll_needed(player->script, call, rank->index))
        fail(rank, call, "rows after an overflow", (int64_t)flight->rows);
}

static void flight_ended(sim_rank_t *rank, ll_handle_t *handle, xep_status_t status)
{
    ll_player_t *player = ll_player_of(rank);
    ll_flight_t *flight = handle->flight;
    if (player->script->unchecked) {
        player->broken = status != XEP_OK; /* other ranks may see it differently: this one's script is over */
        player->turn_done[flight->call->turn] = 1;
        handle->alive = status == XEP_OK;
        if (!handle->alive) slot_free(player, handle);
    } else if (status != flight->call->expect) {
        fail(rank, flight->call, "ended with", status);
    } else if (flight->call->kind == CALL_DISPATCH) {
        dispatch_ended(rank, handle, flight);
    } else if (flight->call->expect == XEP_OK) {
        ll_check_combined(rank, flight, handle->call);
    }
    handle->flight = NULL;
    if (player->broken) player->abandoned[player->nabandoned++] = flight;
    else ll_flight_free(rank, flight);
    if (handle->releasing && handle->alive) handle_release(rank, handle);
}

/* ---- beginnings ---- */

static ll_flight_t *flight_make(sim_rank_t *rank, const ll_call_t *call, ll_handle_t *handle, xep_op_kind_t kind)
{
    ll_flight_t *flight = calloc(1, sizeof *flight);
    flight->call = call;
    flight->op = (xep_op_t){.kind = kind, .slot = handle->slot, .cached_slot = XEP_NO_SLOT, .epoch = call->epoch, .turn = handle->call->turn,
                            .recv = &handle->recv, .state = calloc(1, rank->world->plugin->op_size), .late = sim_late(&flight->waits)};
    return flight;
}

/* An index that is no expert is refused, and forgotten: the same operation is then begun as it should be. */
static void dispatch_refused(sim_rank_t *rank, ll_flight_t *flight)
{
    xep_dispatch_args_t *args = &flight->dispatch;
    uint64_t t = sim_below(rank->world, args->tokens);
    char *at = (char *)(uintptr_t)args->topk_idx + t * args->topk_idx_stride;
    int64_t kept, wrong = sim_chance(rank->world, 50) ? (int64_t)rank->shape.experts : -2;
    size_t bytes = args->topk_idx_dtype == XEP_INT64 ? 8 : 4;
    int32_t narrow = (int32_t)wrong;
    memcpy(&kept, at, bytes);
    memcpy(at, bytes == 8 ? (void *)&wrong : (void *)&narrow, bytes);
    xep_status_t status = rank->world->plugin->dispatch(rank->mode, &flight->op);
    if (status != XEP_ERR_INVALID || !strstr(rank->reason, "topk_idx[")) fail(rank, flight->call, "a wrong index gave", status);
    memcpy(at, &kept, bytes);
    memset(flight->op.state, 0, rank->world->plugin->op_size);
    ll_player_of(rank)->refused++;
}

static int dispatch_may_begin(const ll_player_t *player, const ll_call_t *call)
{
    uint32_t slots = player->script->shape.slots, used = 0;
    if (call->turn >= slots && !player->turn_done[call->turn - slots]) return 0;
    if (call->cached != UINT32_MAX && !player->handles[call->cached].alive) return 0;
    for (uint32_t s = 0; s < slots; s++) used += player->slot_used[s];
    return used < slots;
}

static uint32_t slot_take(sim_rank_t *rank)
{
    ll_player_t *player = ll_player_of(rank);
    uint32_t slot;
    do slot = (uint32_t)sim_below(rank->world, player->script->shape.slots);
    while (player->slot_used[slot]);
    player->slot_used[slot] = 1;
    return slot;
}

static int dispatch_begin(sim_rank_t *rank, const ll_call_t *call)
{
    ll_player_t *player = ll_player_of(rank);
    ll_handle_t *handle = &player->handles[call->handle];
    if (!dispatch_may_begin(player, call)) return 0;
    *handle = (ll_handle_t){.call = call, .slot = slot_take(rank)};
    memset(&handle->recv, 0xa5, sizeof handle->recv);
    ll_flight_t *flight = flight_make(rank, call, handle, XEP_OP_DISPATCH);
    flight->op.dispatch = &flight->dispatch;
    if (call->cached != UINT32_MAX) flight->op.cached_slot = player->handles[call->cached].slot;
    ll_flight_dispatch(rank, flight);
    handle->flight = flight;
    if (flight->op.cached_slot == XEP_NO_SLOT && flight->dispatch.tokens && sim_chance(rank->world, 10)) dispatch_refused(rank, flight);
    xep_status_t status = rank->world->plugin->dispatch(rank->mode, &flight->op);
    if (status != XEP_OK) fail(rank, call, "dispatch gave", status);
    return 1;
}

static int combine_begin(sim_rank_t *rank, const ll_call_t *call)
{
    const xep_plugin_t *plugin = rank->world->plugin;
    ll_handle_t *handle = &ll_player_of(rank)->handles[call->handle];
    void *input = NULL;
    size_t stride = 0;
    if (!handle->alive || handle->flight) return 0;
    if (sim_hash(call->epoch, rank->index, rank->world->seed, 0, 0) % 2 || !handle->recv.rows) {
        xep_status_t status = plugin->input(rank->mode, handle->slot, &input, &stride);
        if (status == XEP_INPROGRESS) return 0;
        if (status != XEP_OK) fail(rank, call, "input gave", status);
    }
    ll_flight_t *flight = flight_make(rank, call, handle, XEP_OP_COMBINE);
    flight->op.combine = &flight->combine;
    ll_flight_combine(rank, flight, handle, input, stride);
    handle->flight = flight;
    xep_status_t status = plugin->combine(rank->mode, &flight->op);
    if (status != XEP_OK) fail(rank, call, "combine gave", status);
    return 1;
}

static int release_begin(sim_rank_t *rank, const ll_call_t *call)
{
    ll_handle_t *handle = &ll_player_of(rank)->handles[call->handle];
    if (handle->flight && handle->flight->call->kind == CALL_DISPATCH) return 0;
    if (handle->flight) handle->releasing = 1;
    else if (handle->alive) handle_release(rank, handle);
    return 1;
}

/* ---- a turn ---- */

static int begin_next(sim_rank_t *rank)
{
    ll_player_t *player = ll_player_of(rank);
    if (player->next == player->script->ncalls) return 0;
    const ll_call_t *call = &player->script->calls[player->next];
    int begun = call->kind == CALL_DISPATCH  ? dispatch_begin(rank, call)
                : call->kind == CALL_COMBINE ? combine_begin(rank, call)
                                             : release_begin(rank, call);
    player->next += (uint32_t)begun;
    return begun;
}

static void progress_handle(sim_rank_t *rank, ll_handle_t *handle)
{
    char text[256];
    if (sim_chance(rank->world, 2)) rank->world->plugin->explain(rank->mode, &handle->flight->op, text, sizeof text);
    xep_status_t status = sim_progress(rank, &handle->flight->op, &handle->flight->waits);
    if (status != XEP_INPROGRESS) flight_ended(rank, handle, status);
}

/* The next in the given order, or any. With an order nothing is taken further before nothing more can begin. */
static void progress_one(sim_rank_t *rank)
{
    ll_player_t *player = ll_player_of(rank);
    uint32_t first = player->order ? 0 : (uint32_t)sim_below(rank->world, LL_HANDLES);
    for (uint32_t i = 0; i < LL_HANDLES; i++) {
        uint32_t h = player->order ? player->order[i] : (first + i) % LL_HANDLES;
        if (!player->handles[h].flight) continue;
        progress_handle(rank, &player->handles[h]);
        return;
    }
}

void ll_step_player(sim_rank_t *rank)
{
    ll_player_t *player = ll_player_of(rank);
    if (player->broken) return;
    int begun = player->order ? begin_next(rank) : sim_chance(rank->world, 30) && begin_next(rank);
    if (!player->broken && !(player->order && begun)) progress_one(rank);
    rank->wire.wire.ops->progress(&rank->wire.wire);
}

int ll_player_finished(const sim_rank_t *rank)
{
    const ll_player_t *player = ll_player_of(rank);
    if (player->broken) return 1;
    for (uint32_t h = 0; h < LL_HANDLES; h++)
        if (player->handles[h].flight) return 0;
    return player->next == player->script->ncalls;
}

void ll_players_make(sim_world_t *world, ll_script_t *script)
{
    for (uint32_t r = 0; r < world->options.nranks; r++) {
        ll_player_t *player = calloc(1, sizeof *player);
        player->script = script;
        world->ranks[r].driver = player;
    }
    world->step = ll_step_player;
    world->finished = ll_player_finished;
}

void ll_players_free(sim_world_t *world)
{
    for (uint32_t r = 0; world->ranks && r < world->options.nranks; r++) {
        ll_player_t *player = world->ranks[r].driver;
        for (uint32_t h = 0; player && h < LL_HANDLES; h++)
            if (player->handles[h].flight) ll_flight_free(&world->ranks[r], player->handles[h].flight);
        for (uint32_t i = 0; player && i < player->nabandoned; i++) ll_flight_free(&world->ranks[r], player->abandoned[i]);
        free(player);
        world->ranks[r].driver = NULL;
    }
}
