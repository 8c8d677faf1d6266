/* SPDX-License-Identifier: BSD-3-Clause */

/** Dispatches in pieces, on one rank: each piece is compared, and all of them together. */
#ifndef TEST_MP_PIECES_H
#define TEST_MP_PIECES_H

#include "mp_job.h"

#include <xep/pieces.h>

typedef struct mp_pieces {
    oracle_pieces_t all;
    uint64_t room, pieces; /* rows of a slot; in how many the dispatch comes */
} mp_pieces_t;

/** Rows of a slot with room for a third of an even load. */
uint64_t mp_pieces_room(const mp_case_t *c);

/** Begins a dispatch with these args; compares its first piece, and what its recv says of the others. */
xep_handle_t *mp_pieces_begin(mp_pieces_t *pieces, mp_job_t *job, const xep_dispatch_args_t *args);

/** A piece that a rank that serves is shown. */
void mp_pieces_served(mp_pieces_t *pieces, const mp_job_t *job, const xep_handle_t *handle);

/** Takes the next piece, with outputs or without; asynchronous: by a request. The last one ends it. */
void mp_pieces_next(mp_pieces_t *pieces, mp_job_t *job, xep_handle_t *handle, int outputs, int asynchronous);

/** Takes all pieces that are left. */
void mp_pieces_rest(mp_pieces_t *pieces, mp_job_t *job, xep_handle_t *handle, int outputs);

/** A dispatch and all its pieces. */
xep_handle_t *mp_pieces_receive(mp_job_t *job, const xep_dispatch_args_t *args, int outputs);

/** All of the above, in rounds, and with two handles of the same routing in turn. */
void mp_pieces_run(xep_group_t *group, const mp_case_t *c);

/** Args of outputs of the piece that the handle shows. */
xep_next_args_t mp_pieces_outputs(mp_job_t *job, xep_handle_t *handle);

#endif
