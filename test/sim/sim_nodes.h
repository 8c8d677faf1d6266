/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Tests that count where rows go by nodes. Of the mode "normal": messages, latencies, what the wire has while sums wait
 * for room, tokens that are summed while rows of others are on their way. Of the mode "ll": rows at their places while
 * others are on their way.
 */
#ifndef SIM_NODES_H
#define SIM_NODES_H

void sim_nodes_messages(void **state);
void sim_nodes_latencies(void **state);
void sim_nodes_sums_go_on(void **state);
void sim_nodes_sums_begin_early(void **state);
void sim_nodes_summed_lie(void **state);
void sim_nodes_copies_begin_early(void **state);

#endif
