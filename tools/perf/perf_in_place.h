/* SPDX-License-Identifier: BSD-3-Clause */

/** --in-place: rows that consumers read where their source has them, and what that saves one who reads each once. */
#ifndef PERF_IN_PLACE_H
#define PERF_IN_PLACE_H

#include "perf.h"

/** What comes before a dispatch, untimed: rows are written where peers may read them; the dispatch takes them there. */
xep_status_t perf_in_place_rows(perf_t *perf);

/** Dispatches, and reads every byte of every received row once, wherever it is. */
xep_status_t perf_in_place_read(perf_t *perf);

#endif
