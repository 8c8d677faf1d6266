/* SPDX-License-Identifier: BSD-3-Clause */

/** One step of every rank: options.slots operations each, and what stands between them. */
#ifndef PERF_OPS_H
#define PERF_OPS_H

#include "perf.h"

void perf_dispatch(perf_t *perf);
void perf_combine(perf_t *perf);

/** Computes for so many rounds on a few kilobytes. */
void perf_compute(uint64_t rounds);

/** Writes the experts' outputs for every handle, where combine will read them. */
void perf_experts(perf_t *perf);
void perf_release(perf_t *perf);

/** Makes the handle whose routing --cached uses. */
void perf_open_base(perf_t *perf);

/** The arguments of the timed operations, for variations. */
void perf_dispatch_args(const perf_t *perf, xep_dispatch_args_t *args_p);
void perf_combine_args(const perf_t *perf, uint32_t slot, xep_combine_args_t *args_p);

/* --in-place: rows that consumers read where their source has them, and what that saves one who reads each once. */

/** What comes before a dispatch, untimed: rows are written where peers may read them; the dispatch takes them there. */
void perf_in_place_rows(perf_t *perf);

/** Dispatches, and reads every byte of every received row once, wherever it is. */
void perf_in_place_read(perf_t *perf);

/* --recv-rows: a second buffer, whose slots have room for so many rows, and operations whose rows come in pieces. */

typedef struct perf_pieces {
    xep_buffer_t *buffer;
    uint64_t room;  /* rows of a slot */
    uint64_t count; /* pieces of the last dispatch */
} perf_pieces_t;

/** Opens the buffer beside the run's own one. Collective, as all that follows. */
void perf_pieces_open(perf_t *perf);

/** NULL is a no-op. */
void perf_pieces_close(perf_pieces_t *pieces);

/** A dispatch and the pieces behind its first one, with the outputs of each before it. Leaves the handle of slot 0. */
void perf_pieces_dispatch(perf_t *perf);

/** Compares the rows of all pieces, and what is combined of them. */
void perf_pieces_check(perf_t *perf);

#endif
