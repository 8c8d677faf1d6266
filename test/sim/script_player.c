/* SPDX-License-Identifier: BSD-3-Clause */

#include "script_player.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle_number.h"
#include "script_check.h"
#include "sim_death.h"
#include "sim_wire.h"

script_player_t *script_player(const sim_rank_t *rank)
{
    return rank->driver;
}

static void fail(sim_rank_t *rank, const script_flight_t *flight, const char *what, int64_t value)
{
    sim_fail(rank->world, "rank %u, call %u: %s: %lld, reason \"%s\"", rank->index, flight->call->number, what,
             (long long)value, sim_reason(rank, &flight->op));
}

/* ---- endings ---- */

static void free_sent(sim_rank_t *rank, script_handle_t *handle)
{
    if (handle->sent != NULL) script_flight_free(rank, handle->sent);
    handle->sent = NULL;
    oracle_pieces_free(&handle->pieces);
}

static void free_slot(sim_rank_t *rank, script_handle_t *handle)
{
    free_sent(rank, handle);
    if (rank->shape.sends_in_place) rank->world->plugin->place->release(rank->mode, handle->slot);
    script_player(rank)->slot_used[handle->slot] = 0;
    handle->alive = 0;
}

static const uint8_t *out_of(const script_handle_t *handle)
{
    return handle->is_without ? handle->out : NULL;
}

/* What the user had is overwritten before the slot is used again: rows that are not written anew show. */
static void spoil_rows(const xep_recv_t *recv)
{
    if (recv->row == NULL) memset(recv->x, 0xa5, recv->capacity * recv->x_stride);
    memset(recv->src_token, 0xa5, recv->capacity * sizeof(int32_t));
    memset(recv->topk_idx, 0xa5, recv->capacity * recv->topk * oracle_element_bytes(recv->topk_idx_dtype));
    if (recv->topk_weights) memset(recv->topk_weights, 0xa5, recv->capacity * recv->topk * sizeof(float));
    if (recv->scales) memset(recv->scales, 0xa5, recv->capacity * recv->nscales * 4);
}

static void release_handle(sim_rank_t *rank, script_handle_t *handle)
{
    script_player_t *player = script_player(rank);
    if (!player->script->unchecked && handle->call->rest == 0)
        script_check_recv(rank, player->script, handle->call, &handle->recv, out_of(handle));
    spoil_rows(&handle->recv);
    free_slot(rank, handle);
}

/* A piece is here, of a dispatch of several. */
static void take_piece(sim_rank_t *rank, script_handle_t *handle)
{
    const script_t *script = script_player(rank)->script;
    if (script->unchecked) return;
    script_check_piece(rank, script, handle->call, &handle->recv, &handle->pieces);
    if (handle->recv.piece == handle->call->rest) free_sent(rank, handle);
}

static void end_dispatch(sim_rank_t *rank, script_handle_t *handle, script_flight_t *flight)
{
    script_player_t *player = script_player(rank);
    handle->is_without = flight->op.out != NULL;
    if (handle->is_without) memcpy(handle->out, flight->op.out, rank->shape.nranks);
    player->turn_done[flight->call->turn - player->script->first_turn] = 1;
    handle->alive = player->script->unchecked || flight->call->expect == XEP_OK;
    if (!handle->alive) free_slot(rank, handle);
    if (!player->script->unchecked) script_check_dispatch(rank, flight);
    if (!handle->alive || flight->call->rest == 0) return;
    handle->sent = flight;
    handle->flight = NULL;
    take_piece(rank, handle);
}

static void keep_result(sim_rank_t *rank, const script_flight_t *flight)
{
    const xep_combine_args_t *args = &flight->combine_args;
    size_t bytes = flight->call->hidden * oracle_element_bytes(flight->call->dtype);
    char *to = script_player(rank)->result;
    for (uint64_t t = 0; t < flight->dispatch->tokens[rank->index]; t++)
        memcpy(to + t * bytes, (const char *)args->out + t * args->out_stride, bytes);
}

/* Where peers lie sums may be any, but not more of them than tokens of this rank. */
static void check_room(sim_rank_t *rank, const script_flight_t *flight)
{
    const xep_combine_args_t *args = &flight->combine_args;
    const script_call_t *call = flight->call, *dispatch = flight->dispatch;
    uint64_t tokens = dispatch->tokens[rank->index];
    script_flight_check_margins(rank, flight, &flight->out, call->hidden * oracle_element_bytes(call->dtype),
                                args->out_stride, tokens);
    if (args->out_weights != NULL)
        script_flight_check_margins(rank, flight, &flight->out_weights, dispatch->topk * sizeof(float),
                                    args->out_weights_stride, tokens);
}

static void end_combine(sim_rank_t *rank, script_flight_t *flight)
{
    script_player_t *player = script_player(rank);
    if (player->script->unchecked) {
        check_room(rank, flight);
        return;
    }
    if (flight->call->expect != XEP_OK) { /* nothing is written, not even what would have been right */
        script_flight_check_margins(rank, flight, &flight->out, 0, 0, 0);
        return;
    }
    script_check_combine(rank, flight);
    if (player->script->integers && flight->dispatch->rest == 0) player->pairing += script_check_pairing(rank, flight);
    if (player->result) keep_result(rank, flight);
}

/*
 * All that are left must tell the same of an operation; one that is gone may know less. Over the wire a rank does
 * without what has not come, in what was in flight: that is looked at in the end (sim_deaths.c).
 */
static void check_agreement(sim_rank_t *rank, const script_flight_t *flight)
{
    script_call_t *call = &script_player(rank)->script->calls[flight->call->number];
    static const uint8_t nobody[SIM_MAX_RANKS];
    const uint8_t *out = flight->op.out == NULL ? nobody : flight->op.out;
    if (rank->world->around == NULL || sim_death_of(rank->world, rank->index) != NULL) return;
    for (uint32_t r = 0; r < rank->shape.nranks; r++) call->with[r] |= !out[r];
    if (!call->is_told) memcpy(call->out, out, rank->shape.nranks);
    else if (rank->shape.nodes == 1 && memcmp(call->out, out, rank->shape.nranks))
        sim_fail(rank->world, "rank %u, call %u: is without others than another rank has told", rank->index,
                 call->number);
    call->is_told = 1;
}

/* Peers lie, the others go on without this rank, or the wire has failed: then its own sentence is told. */
static int is_expected_break(sim_rank_t *rank, const script_flight_t *flight, xep_status_t status)
{
    if (status == XEP_OK) return 0;
    if (script_player(rank)->script->unchecked || (status == XEP_ERR_PEER && rank->world->around != NULL)) return 1;
    if (!rank->wire.sentence[0] || status != XEP_ERR_TRANSPORT) return 0;
    sim_check_wires_sentence(rank, &flight->op);
    return 1;
}

static void end_flight(sim_rank_t *rank, script_handle_t *handle, xep_status_t status)
{
    script_player_t *player = script_player(rank);
    script_flight_t *flight = handle->flight;
    if (status != XEP_OK) snprintf(player->reason, sizeof player->reason, "%.255s", sim_reason(rank, &flight->op));
    if (is_expected_break(rank, flight, status)) {
        player->broken = 1; /* the wire may still read the inputs: they are freed with the world */
        return;
    }
    if (status == XEP_OK) check_agreement(rank, flight);
    if (!player->script->unchecked && status != flight->call->expect) fail(rank, flight, "ended with", status);
    else if (status == XEP_ERR_MISMATCH && flight->op.refused != (flight->call->odd == ODD_REFUSED))
        fail(rank, flight, "thinks that most calls were refused", (int)flight->op.refused);
    else if (flight->call->kind == CALL_DISPATCH) end_dispatch(rank, handle, flight);
    else if (flight->call->kind == CALL_COMBINE) end_combine(rank, flight);
    else if (status == XEP_OK) take_piece(rank, handle);
    if (handle->flight != NULL) script_flight_free(rank, flight);
    handle->flight = NULL;
    if (handle->releasing && handle->alive) release_handle(rank, handle);
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
    if (status != XEP_ERR_INVALID || !strstr(sim_reason(rank, &flight->op), "topk_idx["))
        fail(rank, flight, "a wrong index gave", status);
    memcpy(at, &kept, bytes);
    sim_renew(rank, &flight->op);
}

static void begin_flight(sim_rank_t *rank, script_flight_t *flight, const char *what)
{
    xep_status_t status = sim_begin(rank, &flight->op);
    if (status == XEP_ERR_TRANSPORT && rank->refused) script_player(rank)->broken = 1;
    else if (status != XEP_OK) fail(rank, flight, what, status);
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

static int may_dispatch(const script_player_t *player, const script_call_t *call)
{
    uint32_t slots = player->script->shape.slots, used = 0;
    uint64_t turn = call->turn - player->script->first_turn;
    if (turn >= slots && !player->turn_done[turn - slots]) return 0;
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
    if (!handle->alive || handle->flight || !is_in_step(rank, handle, call)) return 0;
    if (call->kept && !find_input(rank, call, handle, &input, &stride)) return 0;
    script_flight_t *flight = handle->flight =
        script_flight_next(rank, call, handle->sent, handle->slot, &handle->recv, input, stride);
    if (call->expect == XEP_OK) spoil_rows(&handle->recv);
    begin_flight(rank, flight, "next gave");
    return 1;
}

static int begin_combine(sim_rank_t *rank, const script_call_t *call)
{
    script_player_t *player = script_player(rank);
    script_handle_t *handle = &player->handles[call->handle];
    void *input = NULL;
    size_t stride = 0;
    if (!handle->alive || handle->flight || !is_in_step(rank, handle, call)) return 0;
    if (!find_input(rank, call, handle, &input, &stride)) return 0;
    script_flight_t *flight = handle->flight =
        script_flight_combine(rank, player->script, call, handle->call, handle->slot, &handle->recv, input, stride);
    flight->dispatch_out = out_of(handle);
    begin_flight(rank, flight, "combine gave");
    return 1;
}

static int begin_release(sim_rank_t *rank, const script_call_t *call)
{
    script_handle_t *handle = &script_player(rank)->handles[call->handle];
    if (handle->flight && handle->flight->call->kind == CALL_DISPATCH) return 0;
    if (handle->flight) handle->releasing = 1;
    else if (handle->alive) release_handle(rank, handle);
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
    xep_status_t status = sim_progress(rank, &handle->flight->op, &handle->flight->waits);
    if (status != XEP_INPROGRESS) end_flight(rank, handle, status);
}

/* The next in the given order, or any. With an order nothing is taken further before nothing more can begin. */
static void progress_one(sim_rank_t *rank)
{
    script_player_t *player = script_player(rank);
    uint32_t first = player->order ? 0 : (uint32_t)sim_below(&rank->dice, SCRIPT_HANDLES);
    for (uint32_t i = 0; i < SCRIPT_HANDLES; i++) {
        uint32_t h = player->order ? player->order[i] : (first + i) % SCRIPT_HANDLES;
        if (!player->handles[h].flight) continue;
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
    int begun = (player->order || sim_chance(&rank->dice, 30)) && begin_next(rank);
    if (!player->broken && !(player->order && begun)) progress_one(rank);
    if (!rank->world->threads && !rank->world->still && sim_chance(&rank->dice, 50))
        sim_wire_step(rank->world, &rank->dice);
}

int script_player_is_finished(const sim_rank_t *rank)
{
    const script_player_t *player = script_player(rank);
    if (player->broken) return 1;
    for (uint32_t h = 0; h < SCRIPT_HANDLES; h++)
        if (player->handles[h].flight) return 0;
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
    for (uint32_t r = 0; world->ranks && r < world->options.nranks; r++) {
        script_player_t *player = script_player(&world->ranks[r]);
        for (uint32_t h = 0; player && h < SCRIPT_HANDLES; h++)
            if (player->handles[h].flight) script_flight_free(&world->ranks[r], player->handles[h].flight);
        for (uint32_t h = 0; player && h < SCRIPT_HANDLES; h++) free_sent(&world->ranks[r], &player->handles[h]);
        free(player);
        world->ranks[r].driver = NULL;
    }
}
