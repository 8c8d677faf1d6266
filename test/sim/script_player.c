/* SPDX-License-Identifier: BSD-3-Clause */

#include "script_player.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle_number.h"
#include "script_end.h"
#include "sim_wire.h"

script_player_t *script_player(const sim_rank_t *rank)
{
    return rank->driver;
}

/* ---- beginnings ---- */

/* An index that is no expert is refused, and forgotten: the same operation is then begun as it should be. */
static void refuse_dispatch(sim_rank_t *rank, script_flight_t *flight)
{
    xep_dispatch_args_t *args = &flight->dispatch_args;
    uint64_t t = sim_below(&rank->dice, args->tokens), k = sim_below(&rank->dice, args->topk);
    int64_t kept, wrong = sim_chance(&rank->dice, 50) ? (int64_t)rank->shape.experts : -2;
    size_t bytes = oracle_element_bytes(args->topk_idx_dtype);
    char *at = (char *)(uintptr_t)args->topk_idx + t * args->topk_idx_stride + k * bytes;
    int32_t narrow = (int32_t)wrong;
    memcpy(&kept, at, bytes);
    memcpy(at, bytes == 8 ? (void *)&wrong : (void *)&narrow, bytes);
    xep_status_t status = rank->world->plugin->dispatch(rank->mode, &flight->op);
    if (status != XEP_ERR_INVALID || strstr(sim_reason(rank, &flight->op), "topk_idx[") == NULL)
        script_fail(rank, flight, "a wrong index gave", status);
    memcpy(at, &kept, bytes);
    sim_renew(rank, &flight->op);
}

static void begin_flight(sim_rank_t *rank, script_flight_t *flight, const char *what)
{
    xep_status_t status = sim_begin(rank, &flight->op);
    if (status == XEP_ERR_TRANSPORT && rank->refused) script_player(rank)->broken = 1;
    else if (status != XEP_OK) script_fail(rank, flight, what, status);
}

enum { POISON = 0xa5 };

/* Memory that no dispatch has taken is the user's, and as the user left it. */
static void check_idle(sim_rank_t *rank, const char *base, size_t bytes)
{
    const char *idle = script_player(rank)->idle;
    if (idle == NULL || script_player(rank)->script->unchecked) return;
    for (size_t i = 0; i < bytes && base == idle; i++)
        if ((unsigned char)base[i] != POISON) idle = NULL;
    if (base != idle) sim_fail(rank->world, "rank %u: send memory that was not used was taken", rank->index);
}

/*
 * Rows are put where peers may read them, from any of its rows on, or stay in private memory. All of that memory is
 * overwritten first: a peer that still reads there sees it when it looks at its rows once more.
 */
static void place_rows(sim_rank_t *rank, script_flight_t *flight)
{
    xep_dispatch_args_t *args = &flight->dispatch_args;
    const size_t bytes = args->hidden * oracle_element_bytes(args->dtype);
    void *base;
    size_t stride;
    if ((args->flags & XEP_DISPATCH_IN_PLACE) == 0 || args->tokens == 0 || sim_chance(&rank->dice, 30)) return;
    xep_status_t status = rank->world->plugin->place->memory(rank->mode, &base, &stride);
    if (status < 0) sim_fail(rank->world, "rank %u: memory gave %d: %s", rank->index, status, sim_reason(rank, NULL));
    if (status != XEP_OK) return;
    check_idle(rank, base, rank->shape.tokens * stride);
    memset(base, POISON, rank->shape.tokens * stride);
    script_player(rank)->idle = sim_chance(&rank->dice, 20) ? base : NULL;
    if (script_player(rank)->idle != NULL) return;
    char *rows = (char *)base + sim_below(&rank->dice, rank->shape.tokens - args->tokens + 1) * stride;
    for (uint64_t t = 0; t < args->tokens; t++)
        memcpy(rows + t * stride, (const char *)args->x + t * args->x_stride, bytes);
    args->x = rows, args->x_stride = stride;
}

static int is_its_turn(const script_player_t *player, const script_call_t *call)
{
    const uint64_t turn = call->turn - player->script->first_turn, slots = player->script->shape.slots;
    return turn < slots || player->turn_done[turn - slots];
}

static int may_dispatch(const script_player_t *player, const script_call_t *call)
{
    uint32_t slots = player->script->shape.slots, used = 0;
    if (!is_its_turn(player, call)) return 0;
    if (call->cached != SCRIPT_NO_HANDLE && !player->handles[call->cached].alive) return 0;
    for (uint32_t s = 0; s < slots; s++) used += player->slot_used[s];
    return used < slots;
}

static uint32_t take_slot(sim_rank_t *rank)
{
    script_player_t *player = script_player(rank);
    uint32_t slot;
    do {
        slot = (uint32_t)sim_below(&rank->dice, player->script->shape.slots);
    } while (player->slot_used[slot]);
    player->slot_used[slot] = 1;
    return slot;
}

static int begin_dispatch(sim_rank_t *rank, const script_call_t *call)
{
    script_player_t *player = script_player(rank);
    script_handle_t *handle = &player->handles[call->handle];
    uint32_t cached = call->cached;
    if (script_is_odd(call, rank->index, ODD_CACHED)) cached = SCRIPT_NO_HANDLE;
    if (script_is_odd(call, rank->index, ODD_HANDLE)) cached = call->odd_handle;
    if (!may_dispatch(player, call)) return 0;

    *handle = (script_handle_t){.call = call, .slot = take_slot(rank)};
    memset(&handle->recv, 0xa5, sizeof handle->recv);
    script_flight_t *flight = handle->flight =
        script_flight_dispatch(rank, player->script, call, handle->slot,
                               cached == SCRIPT_NO_HANDLE ? XEP_NO_SLOT : player->handles[cached].slot, &handle->recv);
    place_rows(rank, flight);
    if (cached == SCRIPT_NO_HANDLE && flight->dispatch_args.tokens && sim_chance(&rank->dice, 10))
        refuse_dispatch(rank, flight);
    begin_flight(rank, flight, "dispatch gave");
    return 1;
}

/* Where outputs go: in some calls, and where there are none, to the mode's input. 0: peers still read there. */
static int find_input(sim_rank_t *rank, const script_call_t *call, const script_handle_t *handle, void **input_p,
                      size_t *stride_p)
{
    if (sim_hash(call->epoch, rank->index, rank->world->seed, 0, 0) % 2 == 0 && handle->recv.rows) return 1;
    xep_status_t status = rank->world->plugin->input(rank->mode, handle->slot, input_p, stride_p);
    if (status < 0) sim_fail(rank->world, "rank %u: input gave %d", rank->index, status);
    return status == XEP_OK;
}

/* Where peers lie there may be other pieces than the script has: the core would refuse the call. */
static int is_in_step(sim_rank_t *rank, const script_handle_t *handle, const script_call_t *call)
{
    const xep_recv_t *recv = &handle->recv;
    int is_last = recv->piece + 1 >= recv->pieces;
    if (is_last != (call->kind == CALL_NEXT)) return 1;
    if (!script_player(rank)->script->unchecked)
        sim_fail(rank->world, "rank %u, call %u: the handle shows piece %llu of %llu", rank->index, call->number,
                 (unsigned long long)recv->piece, (unsigned long long)recv->pieces);
    script_player(rank)->broken = 1;
    return 0;
}

static int begin_piece(sim_rank_t *rank, const script_call_t *call)
{
    script_handle_t *handle = &script_player(rank)->handles[call->handle];
    void *input = NULL;
    size_t stride = 0;
    if (!handle->alive || handle->flight != NULL || !is_in_step(rank, handle, call)) return 0;
    if (!is_its_turn(script_player(rank), call)) return 0;
    if (call->kept && !find_input(rank, call, handle, &input, &stride)) return 0;
    script_flight_t *flight = handle->flight =
        script_flight_next(rank, call, handle->sent, handle->slot, &handle->recv, input, stride);
    if (call->expect == XEP_OK) script_spoil_rows(&handle->recv, flight->combine_args.topk_weights);
    begin_flight(rank, flight, "next gave");
    return 1;
}

static int begin_combine(sim_rank_t *rank, const script_call_t *call)
{
    script_player_t *player = script_player(rank);
    script_handle_t *handle = &player->handles[call->handle];
    void *input = NULL;
    size_t stride = 0;
    if (!handle->alive || handle->flight != NULL || !is_in_step(rank, handle, call)) return 0;
    if (!find_input(rank, call, handle, &input, &stride)) return 0;
    script_flight_t *flight = handle->flight =
        script_flight_combine(rank, player->script, call, handle->call, handle->slot, &handle->recv, input, stride);
    flight->dispatch_out = script_out_of(handle);
    begin_flight(rank, flight, "combine gave");
    return 1;
}

static int begin_release(sim_rank_t *rank, const script_call_t *call)
{
    script_handle_t *handle = &script_player(rank)->handles[call->handle];
    if (handle->flight != NULL && handle->flight->call->kind == CALL_DISPATCH) return 0;
    if (handle->flight != NULL) handle->releasing = 1;
    else if (handle->alive) script_end_handle(rank, handle);
    return 1;
}

/* ---- a turn ---- */

static int begin_next(sim_rank_t *rank)
{
    script_player_t *player = script_player(rank);
    if (player->next == player->script->ncalls) return 0;
    const script_call_t *call = &player->script->calls[player->next];
    int begun = call->kind == CALL_DISPATCH  ? begin_dispatch(rank, call)
                : call->kind == CALL_COMBINE ? begin_combine(rank, call)
                : call->kind == CALL_NEXT    ? begin_piece(rank, call)
                                             : begin_release(rank, call);
    player->next += (uint32_t)begun;
    return begun;
}

static void progress_handle(sim_rank_t *rank, script_handle_t *handle)
{
    char text[256];
    if (sim_chance(&rank->dice, 2)) rank->world->plugin->explain(rank->mode, &handle->flight->op, text, sizeof text);
    script_flight_bring(rank, handle->flight);
    xep_status_t status = sim_progress(rank, &handle->flight->op, &handle->flight->waits);
    if (status != XEP_INPROGRESS) script_end_flight(rank, handle, status);
}

/* The next in the given order, or any. With an order nothing is taken further before nothing more can begin. */
static void progress_one(sim_rank_t *rank)
{
    script_player_t *player = script_player(rank);
    uint32_t first = player->order != NULL ? 0 : (uint32_t)sim_below(&rank->dice, SCRIPT_HANDLES);
    for (uint32_t i = 0; i < SCRIPT_HANDLES; i++) {
        uint32_t h = player->order != NULL ? player->order[i] : (first + i) % SCRIPT_HANDLES;
        if (player->handles[h].flight == NULL) continue;
        progress_handle(rank, &player->handles[h]);
        return;
    }
}

void script_player_step(sim_rank_t *rank)
{
    script_player_t *player = script_player(rank);
    const sim_around_t *around = rank->world->around;
    if (player->broken) return;
    if (around != NULL && !around->stands(rank)) {
        player->broken = rank->is_out; /* its operations are never taken further */
        return;
    }
    int begun = (player->order != NULL || sim_chance(&rank->dice, 30)) && begin_next(rank);
    if (!player->broken && !(player->order != NULL && begun)) progress_one(rank);
    if (!rank->world->threads && !rank->world->still && sim_chance(&rank->dice, 50))
        sim_wire_step(&rank->world->net, &rank->dice);
}

int script_player_is_finished(const sim_rank_t *rank)
{
    const script_player_t *player = script_player(rank);
    if (player->broken) return 1;
    for (uint32_t h = 0; h < SCRIPT_HANDLES; h++)
        if (player->handles[h].flight != NULL) return 0;
    return player->next == player->script->ncalls;
}

/* ---- all of them ---- */

void script_players_make(sim_world_t *world, script_t *script)
{
    for (uint32_t r = 0; r < world->options.nranks; r++) {
        script_player_t *player = calloc(1, sizeof *player);
        player->script = script;
        world->ranks[r].driver = player;
    }
    world->step = script_player_step;
    world->finished = script_player_is_finished;
}

void script_players_free(sim_world_t *world)
{
    for (uint32_t r = 0; world->ranks != NULL && r < world->options.nranks; r++) {
        script_player_t *player = script_player(&world->ranks[r]);
        for (uint32_t h = 0; player != NULL && h < SCRIPT_HANDLES; h++)
            if (player->handles[h].flight != NULL) script_flight_free(&world->ranks[r], player->handles[h].flight);
        for (uint32_t h = 0; player != NULL && h < SCRIPT_HANDLES; h++)
            script_free_sent(&world->ranks[r], &player->handles[h]);
        free(player);
        world->ranks[r].driver = NULL;
    }
}
