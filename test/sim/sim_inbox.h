/* SPDX-License-Identifier: BSD-3-Clause */

/** Tests of the mode "ll" whose inboxes have no room for all rows: what it costs, what a sender says, what is a lie. */
#ifndef SIM_INBOX_H
#define SIM_INBOX_H

void sim_inbox_messages(void **state);
void sim_inbox_latencies(void **state);
void sim_inbox_explains(void **state);
void sim_inbox_lies(void **state);

#endif
