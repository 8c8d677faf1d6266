/* SPDX-License-Identifier: BSD-3-Clause */

/* Compares every byte of every kind of operation with the oracle. Outputs are filled with
 * a pattern before, and inputs are new each time, so that what was not written is found. */

#include "perf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle_alloc.h"
#include "perf_by_hand.h"
#include "perf_cuda.h"
#include "perf_ops.h"
#include "perf_say.h"

/* In bf16, fp16 and fp32 a number that is nearer to 0 than any that the generator of the oracle makes. */
enum { POISON = 0xa5 };

/*
 * Every slot by itself: they have brought the same rows, and any of them may be the one that is wrong. The first
 * difference is what is told.
 */
static void check_rows(perf_t *perf, const char *what)
{
    oracle_difference_t difference = {0};

    for (uint32_t slot = 0; slot < perf->options.slots && !difference.found; slot++) {
        const xep_recv_t *recv = perf_recv(perf, slot);
        oracle_shape_t shape = perf->shape;
        if (perf->cuda != NULL && shape.by_expert) shape.capacity = recv->capacity; /* all of the slot is shown there */
        oracle_check_recv(&shape, perf->info.rank, recv, &difference);
    }
    perf_compared(perf, what, &difference);
}

/* out has the sums of all slots, [slots][T]; they are compared in host memory, also those of a device. */
static void check_sums(perf_t *perf, const char *what)
{
    const size_t slot_bytes = perf->tokens * perf->sum_bytes;
    oracle_difference_t difference = {0};

    perf_fetch(perf, perf->out, perf->options.slots * slot_bytes);
    for (uint32_t slot = 0; slot < perf->options.slots && !difference.found; slot++)
        oracle_check_combine(&perf->shape, perf->info.rank, 0, perf->out + slot * slot_bytes, perf->sum_bytes,
                             &difference);
    perf_compared(perf, what, &difference);
}

/* Here and, with --memory cuda, in its twin, which is what operations write to. */
static void poison(const perf_t *perf, void *array, size_t bytes)
{
    memset(array, POISON, bytes);
    perf_put(perf, array, bytes);
}

/* Dispatches, combines what the experts wrote in place, compares both. The handles stay. */
static void check_pair(perf_t *perf, const char *dispatch, const char *combine)
{
    perf_dispatch(perf);
    check_rows(perf, dispatch);
    poison(perf, perf->out, perf->options.slots * perf->tokens * perf->sum_bytes);
    perf_experts(perf);
    perf_combine(perf);
    check_sums(perf, combine);
}

static size_t weights_bytes(const perf_t *perf)
{
    return perf->tokens * perf->options.topk * sizeof *perf->out_weights;
}

/* Rows that are padded stay where combine left them: copying them would copy the padding. */
static void combine_everything(perf_t *perf)
{
    xep_combine_args_t args;

    perf_combine_args(perf, 0, &args);
    if (!perf->options.padded) {
        oracle_fill_outputs(&perf->shape, perf->info.rank, perf_recv(perf, 0), perf->area, perf->sum_bytes);
        perf_put(perf, perf->area, perf->recv_rows * perf->sum_bytes);
        args.x = perf_there(perf, perf->area);
    }
    if (perf->options.by_expert) {
        if (!perf->options.sum_at_owner) args.weights = perf_there(perf, perf->weights);
    } else {
        args.topk_weights = perf_received(perf->handle[0])->topk_weights;
        args.out_weights = perf_there(perf, perf->out_weights);
    }
    for (uint32_t which = 0; which < 2; which++) {
        oracle_fill_biases(&perf->shape, which, perf->info.rank, perf->bias[which]);
        perf_put(perf, perf->bias[which], perf->tokens * perf->sum_bytes);
        args.bias[which] = perf_there(perf, perf->bias[which]);
    }
    poison(perf, perf->out, perf->tokens * perf->sum_bytes);
    poison(perf, perf->out_weights, weights_bytes(perf));
    perf_must(perf, xep_combine(perf->handle[0], &args, NULL));
}

/* From private memory, with both biases and the weights, of a handle combined before. */
/* 3: both biases, as bits. By expert the weights are this rank's own and nothing comes back with the rows. */
static void check_everything(perf_t *perf)
{
    oracle_difference_t difference;

    combine_everything(perf);
    perf_fetch(perf, perf->out, perf->tokens * perf->sum_bytes);
    perf_fetch(perf, perf->out_weights, weights_bytes(perf));
    if (!oracle_check_combine(&perf->shape, perf->info.rank, 3, perf->out, perf->sum_bytes, &difference) &&
        !perf->options.by_expert)
        oracle_check_weights(&perf->shape, perf->info.rank, perf->out_weights,
                             perf->options.topk * sizeof *perf->out_weights, &difference);
    perf_compared(perf, "combine of copied rows, biases and weights", &difference);
}

/* Other rows by the routing of handle 0, which is released before the combine: a cached
 * dispatch has a life of its own. */
static void check_cached(perf_t *perf, uint64_t payload)
{
    const int weights = perf->shape.weights;

    perf_release(perf);
    perf_open_base(perf);
    perf_fill_inputs(perf, payload);
    perf->shape.weights &= perf->options.by_expert; /* there they are sent again */
    check_pair(perf, "cached dispatch", "combine of a cached dispatch");
    perf->shape.weights = weights;
    perf_release(perf);
    xep_handle_release(perf->base);
    perf->base = NULL;
}

/* Rows that lie where peers read them, then rows that the rank copies there itself. */
static void check_place(perf_t *perf, uint64_t payload)
{
    perf_release(perf);
    perf_fill_inputs(perf, payload);
    perf_in_place_rows(perf);
    perf->in_place = 1;
    check_pair(perf, "dispatch in place", "combine of rows in place");
    perf->sends = NULL;
    perf_release(perf);
    check_pair(perf, "dispatch in place from elsewhere", "combine of rows in place from elsewhere");
    perf->in_place = 0;
    perf_release(perf);
}

/* A peer that is wrong is nothing to compare times with. */
static void check_peer(perf_t *perf)
{
    oracle_difference_t difference;

    perf_must(perf, xep_group_barrier(perf->group));
    perf->streaming = 1;
    perf_peer_dispatch(perf);
    perf->streaming = 0;
    oracle_check_recv(&perf->shape, perf->info.rank, perf_peer_recv(perf->peer), &difference);
    perf_compared(perf, "dispatch by hand", &difference);
    memset(perf->peer_sums[0], POISON, perf->tokens * perf->sum_bytes);
    perf_peer_experts(perf);
    perf_peer_combine(perf);
    memcpy(perf->out, perf->peer_sums[0], perf->tokens * perf->sum_bytes);
    check_sums(perf, "combine by hand");
}

/*
 * Stale rows of another payload would be found. Everything in place first: copied rows are one of the things that are
 * checked, not the way in which all are. Behind it copy_in is what it was, and so are the inputs, which are those of
 * the run's seed whatever payload was compared.
 */
void perf_check(perf_t *perf, uint64_t payload)
{
    const int copy_in = perf->options.copy_in;

    perf->options.copy_in = 0;
    perf_fill_inputs(perf, payload);
    check_pair(perf, "dispatch", "combine");
    check_everything(perf);
    check_cached(perf, ~payload);
    if (perf->options.in_place) check_place(perf, payload);
    if (perf->pieces != NULL) perf_pieces_check(perf);
    if (perf->peer != NULL) check_peer(perf);
    perf->options.copy_in = copy_in;
    perf_fill_inputs(perf, perf->options.seed);
}

/* ---- the same operations twice, for many seeds: what arrives must be the same bytes ---- */

typedef struct hashes {
    uint64_t received, combined;
} hashes_t;

/* Sums over slots: which slot an operation got does not matter, what it brought does. */
static hashes_t hash_outputs(const perf_t *perf)
{
    hashes_t hashes = {0};

    perf_fetch(perf, perf->out, perf->options.slots * perf->tokens * perf->sum_bytes);
    for (uint32_t slot = 0; slot < perf->options.slots; slot++) {
        hashes.received += oracle_hash_recv(perf_recv(perf, slot), perf->info.nranks);
        hashes.combined += oracle_hash_rows(perf->out + slot * perf->tokens * perf->sum_bytes, perf->sum_bytes,
                                            perf->sum_bytes, perf->tokens);
    }
    return hashes;
}

/* The outputs stay, for those who compare them; perf_release() ends them. */
static hashes_t run_once(perf_t *perf)
{
    perf_dispatch(perf);
    perf_experts(perf);
    perf_combine(perf);
    return hash_outputs(perf);
}

/*
 * The same seed twice, with nothing in common but the memory: a race that shows once in a thousand operations shows as
 * two runs that differ, without the time that the oracle takes.
 */
static void press(perf_t *perf, uint64_t seed)
{
    char complaint[128];

    perf_reseed(perf, seed);
    const hashes_t first = run_once(perf);
    perf_release(perf);
    const hashes_t second = run_once(perf);
    const int received = first.received != second.received, combined = first.combined != second.combined;
    snprintf(complaint, sizeof complaint, "seed %" PRIu64 ": two runs differ in what rank %" PRIu32 " %s", seed,
             perf->info.rank, received ? "received" : "combined");
    perf_fail_if(perf, received || combined ? complaint : NULL, &perf->pressure_result);
    if (perf->options.check) check_rows(perf, "dispatch");
    if (perf->options.check) check_sums(perf, "combine");
    perf_release(perf);
}

/* The seeds behind the run's own, until one has two runs that differ. */
void perf_pressure(perf_t *perf)
{
    for (uint64_t i = 1; i <= perf->options.pressure; i++) {
        perf_progress(perf, "pressure, seed", i, perf->options.pressure);
        press(perf, perf->options.seed + i);
    }
    perf_reseed(perf, perf->options.seed); /* what is reported is of the run's own */
    perf->pressure_result = "ok";
}
