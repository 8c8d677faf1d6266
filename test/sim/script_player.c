/* SPDX-License-Identifier: BSD-3-Clause */

/* A rank that plays a script: what the core does around a mode, in random order. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "script.h"

static script_player_t *player_of(const sim_rank_t *rank)
{
    return rank->driver;
}

static void fail(sim_rank_t *rank, const script_flight_t *flight, const char *what, int64_t value)
{
    sim_fail(rank->world, "rank %u, call %u: %s: %lld, reason \"%s\"", rank->index, flight->call->number, what,
             (long long)value, sim_reason(rank, &flight->op));
}

/* ---- endings ---- */

static void slot_free(script_player_t *player, script_handle_t *handle)
{
    player->slot_used[handle->slot] = 0;
    handle->alive = 0;
}

/* What the user had is overwritten before the slot is used again: rows that are not written anew show. */
static void handle_release(sim_rank_t *rank, script_handle_t *handle)
{
    script_player_t *player = player_of(rank);
    xep_recv_t *recv = &handle->recv;
    if (!player->script->unchecked) script_check_recv(rank, handle->call, recv);
    memset(recv->x, 0xa5, recv->capacity * recv->x_stride);
    memset(recv->src_token, 0xa5, recv->capacity * sizeof(int32_t));
    memset(recv->topk_idx, 0xa5, recv->capacity * recv->topk * (recv->topk_idx_dtype == XEP_INT64 ? 8 : 4));
    if (recv->topk_weights) memset(recv->topk_weights, 0xa5, recv->capacity * recv->topk * sizeof(float));
    if (recv->scales) memset(recv->scales, 0xa5, recv->capacity * recv->nscales * 4);
    slot_free(player, handle);
}

static void dispatch_ended(sim_rank_t *rank, script_handle_t *handle, script_flight_t *flight)
{
    script_player_t *player = player_of(rank);
    const script_call_t *call = flight->call;
    player->turn_done[call->turn - player->script->first_turn] = 1;
    handle->alive = call->expect == XEP_OK;
    if (!handle->alive) slot_free(player, handle);
    if (call->expect == XEP_OK) script_check_recv(rank, call, &handle->recv);
    if (call->expect == XEP_ERR_OVERFLOW) {
        uint64_t rows = 0;
        for (uint32_t r = 0; r < player->script->shape.nranks; r++) rows += script_rows_to(player->script, call, r, rank->index);
        if (handle->recv.rows != rows) fail(rank, flight, "rows after an overflow", (int64_t)handle->recv.rows);
    }
}

static void combine_ended(sim_rank_t *rank, script_handle_t *handle, script_flight_t *flight)
{
    script_player_t *player = player_of(rank);
    if (flight->call->expect != XEP_OK) return;
    script_check_combined(rank, flight, handle->call);
    if (player->script->integers) player->pairing += script_pairing(rank, flight, handle);
}

static void flight_ended(sim_rank_t *rank, script_handle_t *handle, xep_status_t status)
{
    script_player_t *player = player_of(rank);
    script_flight_t *flight = handle->flight;
    if (status != XEP_OK) snprintf(player->reason, sizeof player->reason, "%.255s", sim_reason(rank, &flight->op));
    if (player->script->unchecked && status != XEP_OK) {
        player->broken = 1; /* the wire may still read the inputs: they are freed with the world */
        return;
    }
    if (player->script->unchecked) {
        if (flight->call->kind == CALL_DISPATCH) player->turn_done[flight->call->turn - player->script->first_turn] = 1;
        handle->alive = 1;
    } else if (status != flight->call->expect) {
        fail(rank, flight, "ended with", status);
    } else if (flight->call->kind == CALL_DISPATCH) {
        dispatch_ended(rank, handle, flight);
    } else {
        combine_ended(rank, handle, flight);
    }
    handle->flight = NULL;
    script_flight_free(rank, flight);
    if (handle->releasing && handle->alive) handle_release(rank, handle);
}

/* ---- beginnings ---- */

static script_flight_t *flight_make(sim_rank_t *rank, const script_call_t *call, script_handle_t *handle, xep_op_kind_t kind)
{
    const xep_plugin_t *plugin = rank->world->plugin;
    script_flight_t *flight = calloc(1, sizeof *flight);
    flight->call = call;
    flight->op = (xep_op_t){
        .kind = kind,
        .slot = handle->slot,
        .cached_slot = XEP_NO_SLOT,
        .epoch = call->epoch,
        .turn = handle->call->turn,
        .recv = &handle->recv,
        .state = calloc(1, plugin->op_size),
        .late = sim_late(&flight->waits),
    };
    return flight;
}

/* An index that is no expert is refused, and forgotten: the same operation is then begun as it should be. */
static void dispatch_refused(sim_rank_t *rank, script_flight_t *flight)
{
    xep_dispatch_args_t *args = &flight->dispatch;
    uint64_t t = sim_below(rank->world, args->tokens), k = sim_below(rank->world, args->topk);
    int64_t kept, wrong = sim_chance(rank->world, 50) ? (int64_t)rank->shape.experts : -2;
    size_t bytes = args->topk_idx_dtype == XEP_INT64 ? 8 : 4;
    char *at = (char *)args->topk_idx + t * args->topk_idx_stride + k * bytes;
    int32_t narrow = (int32_t)wrong;
    memcpy(&kept, at, bytes);
    memcpy(at, bytes == 8 ? (void *)&wrong : (void *)&narrow, bytes);
    xep_status_t status = rank->world->plugin->dispatch(rank->mode, &flight->op);
    if (status != XEP_ERR_INVALID || !strstr(sim_reason(rank, &flight->op), "topk_idx[")) fail(rank, flight, "a wrong index gave", status);
    memcpy(at, &kept, bytes);
    memset(flight->op.state, 0, rank->world->plugin->op_size);
}

static int dispatch_may_begin(const script_player_t *player, const script_call_t *call)
{
    uint32_t slots = player->script->shape.slots, used = 0;
    uint64_t turn = call->turn - player->script->first_turn;
    if (turn >= slots && !player->turn_done[turn - slots]) return 0;
    if (call->cached != UINT32_MAX && !player->handles[call->cached].alive) return 0;
    for (uint32_t s = 0; s < slots; s++) used += player->slot_used[s];
    return used < slots;
}

static uint32_t slot_take(sim_rank_t *rank)
{
    script_player_t *player = player_of(rank);
    uint32_t slot;
    do {
        slot = (uint32_t)sim_below(rank->world, player->script->shape.slots);
    } while (player->slot_used[slot]);
    player->slot_used[slot] = 1;
    return slot;
}

static int dispatch_begin(sim_rank_t *rank, const script_call_t *call)
{
    script_player_t *player = player_of(rank);
    script_handle_t *handle = &player->handles[call->handle];
    int odd = call->odd_rank == rank->index;
    uint32_t cached = odd && call->odd == ODD_CACHED ? UINT32_MAX : odd && call->odd == ODD_HANDLE ? call->odd_handle : call->cached;
    if (!dispatch_may_begin(player, call)) return 0;

    *handle = (script_handle_t){.call = call, .slot = slot_take(rank)};
    memset(&handle->recv, 0xa5, sizeof handle->recv);
    script_flight_t *flight = flight_make(rank, call, handle, XEP_OP_DISPATCH);
    flight->op.dispatch = &flight->dispatch;
    if (cached != UINT32_MAX) flight->op.cached_slot = player->handles[cached].slot;
    script_flight_dispatch(rank, flight);
    handle->flight = flight;
    if (flight->op.cached_slot == XEP_NO_SLOT && flight->dispatch.tokens && sim_chance(rank->world, 10))
        dispatch_refused(rank, flight);
    xep_status_t status = rank->world->plugin->dispatch(rank->mode, &flight->op);
    if (status != XEP_OK) fail(rank, flight, "dispatch gave", status);
    return 1;
}

static int combine_begin(sim_rank_t *rank, const script_call_t *call)
{
    const xep_plugin_t *plugin = rank->world->plugin;
    script_handle_t *handle = &player_of(rank)->handles[call->handle];
    void *input = NULL;
    size_t stride = 0;
    if (!handle->alive || handle->flight) return 0;
    if (sim_hash(call->epoch, rank->index, rank->world->seed, 0, 0) % 2 || !handle->recv.rows) {
        xep_status_t status = plugin->input(rank->mode, handle->slot, &input, &stride);
        if (status == XEP_INPROGRESS) return 0;
        if (status != XEP_OK) sim_fail(rank->world, "rank %u: input gave %d", rank->index, status);
    }
    script_flight_t *flight = flight_make(rank, call, handle, XEP_OP_COMBINE);
    flight->op.combine = &flight->combine;
    script_flight_combine(rank, flight, handle->call, input, stride);
    handle->flight = flight;
    xep_status_t status = plugin->combine(rank->mode, &flight->op);
    if (status != XEP_OK) fail(rank, flight, "combine gave", status);
    return 1;
}

static int release_begin(sim_rank_t *rank, const script_call_t *call)
{
    script_handle_t *handle = &player_of(rank)->handles[call->handle];
    if (handle->flight && handle->flight->call->kind == CALL_DISPATCH) return 0;
    if (handle->flight)
        handle->releasing = 1;
    else if (handle->alive)
        handle_release(rank, handle);
    return 1;
}

/* ---- a turn ---- */

static void begin_next(sim_rank_t *rank)
{
    script_player_t *player = player_of(rank);
    if (player->next == player->script->ncalls) return;
    const script_call_t *call = &player->script->calls[player->next];
    int begun = call->kind == CALL_DISPATCH  ? dispatch_begin(rank, call)
                : call->kind == CALL_COMBINE ? combine_begin(rank, call)
                                             : release_begin(rank, call);
    player->next += (uint32_t)begun;
}

static void progress_one(sim_rank_t *rank)
{
    script_player_t *player = player_of(rank);
    uint32_t first = (uint32_t)sim_below(rank->world, SCRIPT_HANDLES);
    char text[256];
    for (uint32_t i = 0; i < SCRIPT_HANDLES; i++) {
        script_handle_t *handle = &player->handles[(first + i) % SCRIPT_HANDLES];
        if (!handle->flight) continue;
        if (sim_chance(rank->world, 2)) rank->world->plugin->explain(rank->mode, &handle->flight->op, text, sizeof text);
        xep_status_t status = sim_progress(rank, &handle->flight->op, &handle->flight->waits);
        if (status != XEP_INPROGRESS) flight_ended(rank, handle, status);
        return;
    }
}

void script_step(sim_rank_t *rank)
{
    script_player_t *player = player_of(rank);
    if (player->broken) return;
    if (sim_chance(rank->world, 30)) begin_next(rank);
    if (!player->broken) progress_one(rank);
    rank->wire.wire.ops->progress(&rank->wire.wire);
}

int script_finished(const sim_rank_t *rank)
{
    const script_player_t *player = player_of(rank);
    if (player->broken) return 1;
    for (uint32_t h = 0; h < SCRIPT_HANDLES; h++)
        if (player->handles[h].flight) return 0;
    return player->next == player->script->ncalls;
}

void script_players_make(sim_world_t *world, script_t *script)
{
    for (uint32_t r = 0; r < world->options.nranks; r++) {
        script_player_t *player = calloc(1, sizeof *player);
        player->script = script;
        world->ranks[r].driver = player;
    }
    world->step = script_step;
    world->finished = script_finished;
}

void script_players_free(sim_world_t *world)
{
    for (uint32_t r = 0; world->ranks && r < world->options.nranks; r++) {
        script_player_t *player = world->ranks[r].driver;
        for (uint32_t h = 0; player && h < SCRIPT_HANDLES; h++)
            if (player->handles[h].flight) script_flight_free(&world->ranks[r], player->handles[h].flight);
        free(player);
        world->ranks[r].driver = NULL;
    }
}
