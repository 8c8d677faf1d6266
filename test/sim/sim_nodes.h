/* SPDX-License-Identifier: BSD-3-Clause */

/** Tests of the mode "normal" that count: messages, latencies, and what the wire has while sums wait for room. */
#ifndef SIM_NODES_H
#define SIM_NODES_H

void sim_nodes_messages(void **state);
void sim_nodes_latencies(void **state);
void sim_nodes_sums_go_on(void **state);

#endif
