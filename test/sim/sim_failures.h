/* SPDX-License-Identifier: BSD-3-Clause */

/** The wire fails at every call that a mode makes. */
#ifndef SIM_FAILURES_H
#define SIM_FAILURES_H

/** A test of all modes. */
void sim_wire_failures(void **state);

#endif
