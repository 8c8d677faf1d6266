/* SPDX-License-Identifier: BSD-3-Clause */

#include "sim_suites.h"

#include "script_truth.h"

void sim_pieces_script(sim_run_t *run)
{
    script_t *script = &run->script;
    xep_shape_t shape = sim_small_shape;
    shape.in_pieces = 1;
    shape.recv_rows = 3;
    script_begin(&run->world, run->mode, script, &shape);
    script_call_t *call = script_dispatch(script, 0, SCRIPT_NO_HANDLE);
    call->in_pieces = call->kept = call->weights = 1;
    for (uint32_t r = 0; r < shape.nranks; r++) call->alignment[r] = 1;
    call->rest = script_pieces(script, call) - 1;
    const uint64_t rest = call->rest;
    script->finals[0] =
        (script_call_t){.kind = CALL_COMBINE, .dtype = XEP_BF16, .hidden = shape.hidden, .payload = 7, .weights = 1};
    for (uint64_t i = 0; i < rest; i++) script_next(script, 0);
    call = script_combine(script, 0);
    call->weights = 1;
    call->payload = script->finals[0].payload;
    script_release(script, 0);
}

/* No rank maps another, and the weights that go back are those that the slot shows. */
static void piece_by_piece(void **state, uint64_t seed)
{
    sim_run_t *run = sim_run_begin(state, seed, sim_small_shape.nranks);
    run->options = (sim_options_t){.nranks = sim_small_shape.nranks, .threads = 1, .inflight = 100, .deliver = 20};
    for (uint32_t r = 0; r < sim_small_shape.nranks; r++) run->options.node[r] = r;
    run->world.options = run->options;
    sim_pieces_script(run);
    if (sim_run_open(run)) sim_run_play(run, SIM_TURNS, 0);
    sim_run_end(run);
}

void sim_pieces(void **state)
{
    sim_each_seed(state, sim_few_if_brief(100), piece_by_piece);
}
