/* SPDX-License-Identifier: BSD-3-Clause */

#include "script_end.h"

#include <stdio.h>
#include <string.h>

#include "oracle_number.h"
#include "script_check.h"
#include "sim_death.h"

void script_fail(sim_rank_t *rank, const script_flight_t *flight, const char *what, int64_t value)
{
    sim_fail(rank->world, "rank %u, call %u: %s: %lld, reason \"%s\"", rank->index, flight->call->number, what,
             (long long)value, sim_reason(rank, &flight->op));
}

void script_free_sent(sim_rank_t *rank, script_handle_t *handle)
{
    if (handle->sent != NULL) script_flight_free(rank, handle->sent);
    handle->sent = NULL;
    oracle_pieces_free(&handle->pieces);
}

static void free_slot(sim_rank_t *rank, script_handle_t *handle)
{
    script_free_sent(rank, handle);
    if (rank->shape.sends_in_place) rank->world->plugin->place->release(rank->mode, handle->slot);
    script_player(rank)->slot_used[handle->slot] = 0;
    handle->alive = 0;
}

const uint8_t *script_out_of(const script_handle_t *handle)
{
    return handle->is_without ? handle->out : NULL;
}

void script_spoil_rows(const xep_recv_t *recv, const float *kept)
{
    if (recv->row == NULL) memset(recv->x, 0xa5, recv->capacity * recv->x_stride);
    memset(recv->src_token, 0xa5, recv->capacity * sizeof(int32_t));
    memset(recv->topk_idx, 0xa5, recv->capacity * recv->topk * oracle_element_bytes(recv->topk_idx_dtype));
    if (recv->topk_weights != NULL && recv->topk_weights != kept)
        memset(recv->topk_weights, 0xa5, recv->capacity * recv->topk * sizeof(float));
    if (recv->scales != NULL) memset(recv->scales, 0xa5, recv->capacity * recv->nscales * 4);
}

void script_end_handle(sim_rank_t *rank, script_handle_t *handle)
{
    script_player_t *player = script_player(rank);
    if (!player->script->unchecked && handle->call->rest == 0)
        script_check_recv(rank, player->script, handle->call, &handle->recv, script_out_of(handle));
    script_spoil_rows(&handle->recv, NULL);
    free_slot(rank, handle);
}

/* A piece is here, of a dispatch of several. */
static void take_piece(sim_rank_t *rank, script_handle_t *handle)
{
    const script_t *script = script_player(rank)->script;
    if (script->unchecked) return;
    script_check_piece(rank, script, handle->call, &handle->recv, &handle->pieces);
    if (handle->recv.piece == handle->call->rest) script_free_sent(rank, handle);
}

static void end_dispatch(sim_rank_t *rank, script_handle_t *handle, script_flight_t *flight)
{
    script_player_t *player = script_player(rank);
    handle->is_without = flight->op.out != NULL;
    if (handle->is_without) memcpy(handle->out, flight->op.out, rank->shape.nranks);
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
    if (player->result != NULL) keep_result(rank, flight);
}

/*
 * All that are left must tell the same of an operation; one that is gone may know less. Over the wire a rank does
 * without what has not come, in what was in flight: that is looked at in the end (sim_deaths.c). Where heaps are
 * spoiled nobody can promise it: a word of a rank that has died since may be overwritten at all that are left, and a
 * ballot between the looks of two others.
 */
static void check_agreement(sim_rank_t *rank, const script_flight_t *flight)
{
    script_call_t *call = &script_player(rank)->script->calls[flight->call->number];
    static const uint8_t nobody[SIM_MAX_RANKS];
    const uint8_t *out = flight->op.out == NULL ? nobody : flight->op.out;
    if (rank->world->around == NULL || sim_death_of(rank->world, rank->index) != NULL) return;
    if (script_player(rank)->script->unchecked) return;
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

void script_end_flight(sim_rank_t *rank, script_handle_t *handle, xep_status_t status)
{
    script_player_t *player = script_player(rank);
    script_flight_t *flight = handle->flight;
    if (status != XEP_OK) snprintf(player->reason, sizeof player->reason, "%.255s", sim_reason(rank, &flight->op));
    if (is_expected_break(rank, flight, status)) {
        if (status == XEP_ERR_TRANSPORT && flight->call->kind == CALL_DISPATCH) script_check_no_stats(rank, flight);
        player->broken = 1; /* the wire may still read the inputs: they are freed with the world */
        return;
    }
    if (flight->call->kind != CALL_COMBINE) player->turn_done[flight->call->turn - player->script->first_turn] = 1;
    if (status == XEP_OK) check_agreement(rank, flight);
    if (!player->script->unchecked && status != flight->call->expect) script_fail(rank, flight, "ended with", status);
    else if (status == XEP_ERR_MISMATCH && flight->op.refused != (flight->call->odd == ODD_REFUSED))
        script_fail(rank, flight, "thinks that most calls were refused", (int)flight->op.refused);
    else if (flight->call->kind == CALL_DISPATCH) end_dispatch(rank, handle, flight);
    else if (flight->call->kind == CALL_COMBINE) end_combine(rank, flight);
    else if (status == XEP_OK) take_piece(rank, handle);
    if (handle->flight != NULL) script_flight_free(rank, flight);
    handle->flight = NULL;
    if (handle->releasing && handle->alive) script_end_handle(rank, handle);
}
