/* SPDX-License-Identifier: BSD-3-Clause */

#include "sim_calls.h"

#include <stdio.h>
#include <string.h>

#include "oracle_hash.h"
#include "sim_death.h"
#include "sim_wire.h"

/* Where the wire stays dead, an operation may have met that in a call of its own. */
void sim_check_wires_sentence(sim_rank_t *rank, const xep_op_t *op)
{
    const char *reason = sim_reason(rank, op), *told = reason[0] ? reason : rank->wire.told,
               *said = rank->wire.sentence;
    size_t same = rank->world->options.fail_once ? strlen(said) + 1 : strlen("the simulated wire broke");
    if (strncmp(told, said, same)) sim_fail(rank->world, "\"%s\" is told, not \"%s\"", told, said);
}

/* Another call of the thread has failed meanwhile. */
static void forget_told(sim_rank_t *rank)
{
    snprintf(rank->wire.told, sizeof rank->wire.told, "something else");
}

static uint64_t hash_seen(sim_world_t *world, const sim_rank_t *but)
{
    uint64_t hash = sim_wire_count(&but->wire, NULL);
    for (uint32_t r = 0; r < world->options.nranks; r++)
        if (r != but->index) hash = oracle_hash_row(world->ranks[r].env.heap, but->env.heap_bytes, hash);
    return hash;
}

static xep_status_t call_mode(sim_rank_t *rank, xep_op_t *op)
{
    const xep_plugin_t *plugin = rank->world->plugin;
    forget_told(rank);
    if (rank->world->around != NULL) rank->world->around->choose(rank, op);
    int watched = sim_death_enter(rank);
    xep_status_t status = op->kind == XEP_OP_DISPATCH  ? plugin->dispatch(rank->mode, op)
                          : op->kind == XEP_OP_COMBINE ? plugin->combine(rank->mode, op)
                                                       : plugin->next(rank->mode, op);
    sim_death_leave(rank, watched);
    return status;
}

void sim_renew(sim_rank_t *rank, xep_op_t *op)
{
    memset(op->state, 0, rank->world->plugin->state_bytes);
    for (uint32_t i = 0; i < SIM_REASONS; i++)
        if (rank->reasons[i].op == op) rank->reasons[i] = (sim_reason_t){0};
}

xep_status_t sim_begin(sim_rank_t *rank, xep_op_t *op)
{
    sim_world_t *world = rank->world;
    if (!world->options.fail_at || rank->index != 0 || rank->wire.sentence[0]) return call_mode(rank, op);
    uint64_t seen = hash_seen(world, rank);
    world->still = 1;
    xep_status_t status = call_mode(rank, op);
    world->still = 0;
    if (status >= 0 || !rank->wire.sentence[0]) return status;
    if (hash_seen(world, rank) != seen) sim_fail(world, "an operation that was not begun has been seen by peers");
    sim_check_wires_sentence(rank, op);
    rank->refused++;
    if (!world->options.fail_once) return status;
    sim_renew(rank, op);
    return call_mode(rank, op);
}

/* ---- waits ---- */

xep_late_t sim_late(sim_waits_t *waits)
{
    return (xep_late_t){.ranks = waits->ranks, .wait_ns = waits->wait_ns};
}

static void waits_check(sim_world_t *world, const xep_op_t *op, const sim_waits_t *waits)
{
    if (op->late.count || op->late.since_ns)
        sim_fail(world, "an operation that ended waits for %u ranks", op->late.count);
    for (uint32_t r = 0; r < world->options.nranks; r++)
        if (waits->wait_ns[r] != waits->expected[r])
            sim_fail(world, "epoch %llu waited for rank %u for %llu, not %llu", (unsigned long long)op->epoch, r,
                     (unsigned long long)waits->wait_ns[r], (unsigned long long)waits->expected[r]);
}

/* Where ranks are left out meanwhile, nobody says how long they were waited for. */
static xep_status_t progress_without(sim_rank_t *rank, xep_op_t *op)
{
    const sim_around_t *around = rank->world->around;
    xep_status_t status = around->settle(rank, op);
    int watched = sim_death_enter(rank);
    if (status == XEP_OK) status = rank->world->plugin->progress(rank->mode, op);
    sim_death_leave(rank, watched);
    if (status != XEP_INPROGRESS) status = around->end(rank, op, status);
    return status;
}

xep_status_t sim_progress(sim_rank_t *rank, xep_op_t *op, sim_waits_t *waits)
{
    sim_world_t *world = rank->world;
    if (world->around != NULL) return progress_without(rank, op);
    uint64_t look = world->now; /* the clock stands still until the mode has looked at words */
    for (uint32_t i = 0; i < waits->nlate; i++) waits->expected[waits->late[i]] += look - waits->looked;
    forget_told(rank);
    int watched = sim_death_enter(rank);
    xep_status_t status = world->plugin->progress(rank->mode, op);
    sim_death_leave(rank, watched);
    int was_stopped = sim_death_of(world, rank->index) != NULL; /* perhaps before the mode looked at words */
    if (status == XEP_OK && !was_stopped) waits_check(world, op, waits);
    if (status != XEP_INPROGRESS || op->epoch % 3 == 0) return status;
    waits->looked = op->late.since_ns ? look : world->now;
    if (op->late.count && !op->late.since_ns) op->late.since_ns = world->now;
    waits->nlate = op->late.count;
    memcpy(waits->late, op->late.ranks, waits->nlate * sizeof *waits->late);
    return status;
}
