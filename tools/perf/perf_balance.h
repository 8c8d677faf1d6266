/* SPDX-License-Identifier: BSD-3-Clause */

/** --balance: a layer with experts at their owners, and the same with balanced dispatches. */
#ifndef PERF_BALANCE_H
#define PERF_BALANCE_H

#include "perf.h"

/** Times both in turn and prints a line for each, from rank 0. 0, or the exit status. Collective. */
int perf_balance(perf_t *perf);

#endif
