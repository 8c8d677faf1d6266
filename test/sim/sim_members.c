/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Of a buffer there is what members.c looks at. Its requests are copies of the operations in flight, by their slots.
 * The launcher knows of one dead rank, of another host or not; of the others nobody does.
 */
#include "sim_members.h"

#include <stddef.h>
#include <stdlib.h>

#include "buffer.h"
#include "group_ctl.h"
#include "group_out.h"
#include "members.h"
#include "request.h"
#include "sim_death.h"
#include "sim_wire.h"

enum { PATIENCE = 40 }; /* turns for which a rank may be stopped before others give it up */

typedef struct member {
    xep_buffer_t buffer;
    xep_counts_t counts;
    xep_group_t group;
    xep_heap_wire_t control; /* nothing */
    xep_transport_t transport;
    xep_boot_t boot;
    xep_peer_t *peers; /* [R] */
    sim_rank_t *rank;
    xep_op_t **ops; /* [nrequests] in flight */
} member_t;

static member_t *member_of(const sim_rank_t *rank)
{
    return rank->member;
}

const uint8_t *sim_members_out(const sim_rank_t *rank)
{
    return member_of(rank)->buffer.members->agreement.out;
}

int sim_members_is_with(const sim_rank_t *rank, uint32_t other, uint64_t epoch)
{
    const xep_agreement_t *agreement = &member_of(rank)->buffer.members->agreement;
    return !agreement->out[other] || xep_ballot_is_with(&agreement->mine, other, 2 * epoch + 1); /* its last word */
}

/* ---- what a mode and the core call ---- */

static member_t *member_at(const void *field, size_t offset)
{
    return (member_t *)(void *)(uintptr_t)((const char *)field - offset);
}

static void heap_fence_off(xep_heap_wire_t *heap, uint32_t rank)
{
    if (heap->wire.ops != NULL) sim_wire_fence_off((sim_wire_t *)(void *)heap, rank);
}

static xep_status_t ctl(xep_transport_t *transport, uint32_t rank, const void *data, size_t bytes)
{
    sim_wire_ctl(&member_at(transport, offsetof(member_t, transport))->rank->wire, rank, data, bytes);
    return XEP_OK;
}

/* Ranks of the simulator are in the library all the time. */
static int ctl_has_left(xep_transport_t *transport)
{
    (void)transport;
    return 1;
}

static void on_ctl(sim_rank_t *rank, uint32_t from, const void *data, size_t bytes)
{
    const xep_transport_t *transport = &member_of(rank)->transport;
    transport->on_ctl(transport->on_ctl_arg, from, data, bytes);
}

static const xep_transport_ops_t transport_ops = {.heap_fence_off = heap_fence_off,
                                                  .ctl = ctl,
                                                  .ctl_has_left = ctl_has_left};

static int env_is_told(const xep_env_t *env)
{
    return atomic_load(&member_of((const sim_rank_t *)env)->buffer.members->own->left_out) != 0;
}

static int env_has_ended(const xep_env_t *env, uint32_t rank)
{
    return ((const sim_rank_t *)env)->world->ranks[rank].dead;
}

/* What the core sets of whom it is with. */
static void copy_ranks(xep_op_t *to, const xep_op_t *from)
{
    to->with = from->with;
    to->heard = from->heard;
    to->late = from->late;
    to->out = from->out;
}

static void env_leave_out(const xep_env_t *env, xep_op_t *op, uint32_t rank)
{
    xep_request_t *req = &member_of((const sim_rank_t *)env)->buffer.requests[op->slot];
    req->op = *op;
    xep_members_leave_out(req, rank);
    copy_ranks(op, &req->op);
}

/* ---- a world ---- */

static void *zeroed(size_t count, size_t bytes)
{
    void *memory = calloc(count, bytes);
    if (memory == NULL) abort();
    return memory;
}

/* Of hosts whose processes nobody can look up. */
static void make_group(member_t *member)
{
    xep_group_t *group = &member->group;
    group->rank = member->rank->index;
    group->nranks = member->rank->shape.nranks;
    group->out = zeroed(group->nranks, sizeof *group->out);
    group->peers = member->peers = zeroed(group->nranks, sizeof *group->peers);
    for (uint32_t r = 0; r < group->nranks; r++) group->peers[r].host = r + UINT64_C(1);
    group->control = &member->control;
    group->transport = &member->transport;
    group->boot = &member->boot;
    member->transport.ops = &transport_ops;
    member->boot.dead = &member->rank->world->first_dead;
    if (xep_ctl_open(group) != XEP_OK) abort();
}

static void make_member(sim_rank_t *rank)
{
    member_t *member = rank->member = zeroed(1, sizeof *member);
    xep_buffer_t *buffer = &member->buffer;
    member->rank = rank;
    make_group(member);
    buffer->group = &member->group;
    buffer->heap = &rank->wire.super; /* the mode's: what the members say goes the same way, among all else */
    buffer->shape = rank->shape;
    buffer->waits.counts = &member->counts;
    buffer->plugin.plugin = rank->world->plugin;
    buffer->broken = 1; /* so that nobody ends requests that are copies */
    buffer->nrequests = rank->shape.slots * XEP_REQUESTS_PER_SLOT;
    buffer->requests = zeroed(buffer->nrequests, sizeof *buffer->requests);
    for (uint32_t i = 0; i < buffer->nrequests; i++) buffer->requests[i].buffer = buffer;
    member->ops = zeroed(buffer->nrequests, sizeof(xep_op_t *));
}

static void open_all(sim_world_t *world)
{
    for (uint32_t r = 0; r < world->options.nranks; r++) make_member(&world->ranks[r]);
    for (uint32_t r = 0; r < world->options.nranks; r++) {
        xep_env_t *env = &world->ranks[r].env;
        xep_buffer_t *buffer = &member_of(&world->ranks[r])->buffer;
        buffer->areas.members = env->heap_bytes - xep_members_bytes(&buffer->shape);
        if (xep_members_open(buffer) != XEP_OK) abort();
        env->out = buffer->members->agreement.out;
        env->is_told = env_is_told;
        env->has_ended = env_has_ended;
        env->leave_out = env_leave_out;
    }
}

static void close_all(sim_world_t *world)
{
    for (uint32_t r = 0; r < world->options.nranks; r++) {
        member_t *member = member_of(&world->ranks[r]);
        xep_members_close(&member->buffer);
        xep_ctl_close(&member->group);
        free(member->ops);
        free(member->buffer.requests);
        free(member->peers);
        free(member->group.out);
        free(member);
    }
}

/* ---- operations ---- */

static void copy_in(member_t *member)
{
    member->buffer.mode = member->rank->mode;
    for (uint32_t i = 0; i < member->buffer.nrequests; i++) {
        xep_request_t *req = &member->buffer.requests[i];
        req->state = member->ops[i] != NULL ? XEP_REQUEST_ACTIVE : XEP_REQUEST_FREE;
        if (member->ops[i] != NULL) req->op = *member->ops[i];
    }
}

static void copy_out(const member_t *member)
{
    for (uint32_t i = 0; i < member->buffer.nrequests; i++) {
        xep_op_t *op = member->ops[i];
        if (op == NULL) continue;
        copy_ranks(op, &member->buffer.requests[i].op);
        op->is_ruled = member->buffer.requests[i].op.is_ruled;
        op->decision = member->buffer.requests[i].op.decision;
    }
}

/* The epoch is used up: the mode of a simulated world does not fail to begin. */
static void choose(sim_rank_t *rank, xep_op_t *op)
{
    member_t *member = member_of(rank);
    xep_request_t *req = &member->buffer.requests[op->slot];
    req->op = *op;
    req->unsettled = 0;
    xep_members_choose(req);
    copy_ranks(op, &req->op);
    member->ops[op->slot] = op;
    member->buffer.epoch = op->epoch;
    xep_members_tell_begun(&member->buffer);
}

static xep_status_t settle(sim_rank_t *rank, xep_op_t *op)
{
    member_t *member = member_of(rank);
    xep_request_t *req = &member->buffer.requests[op->slot];
    if (!req->unsettled) return XEP_OK;
    copy_in(member);
    xep_status_t status = xep_members_settle(req);
    copy_out(member);
    return status;
}

static xep_status_t end(sim_rank_t *rank, xep_op_t *op, xep_status_t status)
{
    member_t *member = member_of(rank);
    copy_in(member);
    xep_members_note_decision(&member->buffer, op, status);
    member->ops[op->slot] = NULL;
    if (status != XEP_OK) return status;
    status = xep_buffer_check_in(&member->buffer);
    if (status == XEP_OK) xep_members_show(&member->buffer.requests[op->slot]);
    return status;
}

/* ---- the agreement ---- */

/* With nothing in flight it waits to begin something, and looks who is alive. */
static int waits_for(const member_t *member, uint32_t rank)
{
    const xep_agreement_t *agreement = &member->buffer.members->agreement;
    uint32_t flights = 0;
    if (agreement->open && agreement->asked_ns[rank] != 0) return 1;
    for (uint32_t i = 0; i < member->buffer.nrequests; i++) {
        const xep_op_t *op = member->ops[i];
        if (op != NULL && op->late.count == 0 && sim_wire_is_behind(&member->rank->wire, rank)) return 1;
        for (uint32_t j = 0; op != NULL && j < op->late.count; j++)
            if (op->late.ranks[j] == rank) return 1;
        flights += op != NULL;
    }
    return flights == 0;
}

static void give_up_one(member_t *member, const sim_death_t *death)
{
    sim_world_t *world = member->rank->world;
    if (!death->is_over || death->rank == member->rank->index) return;
    const sim_rank_t *other = &world->ranks[death->rank];
    if (!sim_chance(&member->rank->dice, 20)) return;
    if (other->dead) xep_group_put_out(&member->group, other->index, XEP_OUT_DIED);
    else if (other->stopped && death->is_given_up && world->now > death->since + PATIENCE &&
             waits_for(member, other->index))
        xep_group_put_out(&member->group, other->index, XEP_OUT_LATE);
}

/*
 * One that comes back when others store nothing of it any more hears nothing of these. It gives them up in the end, and
 * then, as most are gone, itself.
 */
static void give_up_others(member_t *member, const sim_death_t *death)
{
    const sim_world_t *world = member->rank->world;
    xep_buffer_t *buffer = &member->buffer;
    if (!death->is_over || !death->is_given_up || death->rank != member->rank->index) return;
    for (uint32_t r = 0; r < world->options.nranks; r++)
        if (world->ranks[r].wire.fenced_off[death->rank] && sim_chance(&member->rank->dice, 5))
            xep_group_put_out(&member->group, r, XEP_OUT_LATE);
    if (buffer->members->agreement.open && xep_members_has_lost_quorum(buffer) && sim_chance(&member->rank->dice, 5))
        atomic_store(&buffer->members->own->left_out, world->options.nranks + UINT64_C(1));
}

static void give_up(member_t *member)
{
    const sim_death_t *death = member->rank->world->death;
    for (; death != NULL; death = death->next) {
        give_up_one(member, death);
        give_up_others(member, death);
    }
}

static int stands(sim_rank_t *rank)
{
    member_t *member = member_of(rank);
    give_up(member);
    copy_in(member);
    int may = xep_members_advance(&member->buffer);
    copy_out(member);
    rank->is_out = env_is_told(&rank->env);
    return may && !rank->is_out;
}

const sim_around_t sim_members = {
    .bytes = xep_members_bytes,
    .open = open_all,
    .close = close_all,
    .stands = stands,
    .choose = choose,
    .settle = settle,
    .end = end,
    .on_ctl = on_ctl,
};
