/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * What a program for one machine would do by hand, without a library: rows stored straight into the receiver's memory,
 * read where they are for the sum, counts and flags in shared words. Slots, errors, deadlines, other machines, other
 * layouts it does not have. Rows by rank; checked by the oracle with --check.
 */
#ifndef PERF_PEER_H
#define PERF_PEER_H

#include "perf.h"

typedef struct perf_peer perf_peer_t;

/** 0 and *peer_p, or the exit status and a sentence. Collective. */
int perf_peer_open(perf_t *perf, perf_peer_t **peer_p);
void perf_peer_close(perf_peer_t *peer);

/** Each begins when all ranks have ended the one before, which the caller sees to with a barrier. */
void perf_peer_dispatch(perf_peer_t *peer, int streaming);
void perf_peer_experts(perf_peer_t *peer);
void perf_peer_combine(perf_peer_t *peer, int streaming);

/** What the last dispatch brought to this rank; the sums of a combine are in perf's out. */
const xep_recv_t *perf_peer_recv(perf_peer_t *peer);

#endif
