/* SPDX-License-Identifier: BSD-3-Clause */

/** --recv-rows: a second buffer, whose slots have room for so many rows, and operations whose rows come in pieces. */
#ifndef PERF_PIECES_H
#define PERF_PIECES_H

#include "perf.h"

typedef struct perf_pieces {
    xep_buffer_t *buffer;
    xep_handle_t *handle;
    uint64_t room;  /* rows of a slot */
    uint64_t count; /* pieces of the last dispatch */
} perf_pieces_t;

/** Opens the buffer beside the run's own one. 0 or the exit status. Collective, as all that follows. */
int perf_pieces_open(perf_t *perf);

/** NULL is a no-op. */
void perf_pieces_close(perf_pieces_t *pieces);

/** A dispatch and the pieces behind its first one, with the outputs of each before it. Leaves a handle. */
xep_status_t perf_pieces_dispatch(perf_t *perf);

/** Writes the experts' outputs of the last piece, where the combine will read them. */
xep_status_t perf_pieces_experts(perf_t *perf);

xep_status_t perf_pieces_combine(perf_t *perf);
void perf_pieces_release(perf_t *perf);

/** Compares the rows of all pieces, and what is combined of them. 0 or the exit status. */
int perf_pieces_check(perf_t *perf);

#endif
