/* SPDX-License-Identifier: BSD-3-Clause */

/** Tests that one mode, or each of them, has in its list. */
#ifndef SIM_SUITES_H
#define SIM_SUITES_H

#include "sim_cases.h"

/* ---- sim_failures.c: the wire fails at every call that a mode makes */

/** A test of all modes. */
void sim_wire_failures(void **state);

/*
 * ---- sim_recv_ring.c: receive rings of ll that have no room for all rows: what it costs, what a sender says, what is
 * a lie
 */

void sim_ll_messages(void **state);
void sim_recv_ring_latencies(void **state);
void sim_recv_ring_explains(void **state);
void sim_recv_ring_lies(void **state);

/* ---- sim_pieces.c: dispatches in pieces over a wire that takes its time */

/** A dispatch in pieces of three rows, with outputs, its combine and its end: for ranks of sim_small_shape. */
void sim_pieces_script(sim_run_t *run);

/** What is put of a piece has left before others write the next one over it. */
void sim_pieces(void **state);

/* ---- sim_nodes.c: where rows go by nodes. Of normal: messages, latencies, what the wire has while sums wait for room,
 * tokens that are summed while rows of others are on their way. Of ll: rows at their places meanwhile */

void sim_nodes_messages(void **state);
void sim_nodes_latencies(void **state);
void sim_nodes_sums_go_on(void **state);
void sim_nodes_sums_begin_early(void **state);
void sim_nodes_summed_lie(void **state);
void sim_nodes_copies_begin_early(void **state);

#endif
