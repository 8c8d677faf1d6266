/* SPDX-License-Identifier: BSD-3-Clause */

/** What an operation costs besides its bytes. */
#ifndef PERF_FIXED_H
#define PERF_FIXED_H

#include "perf.h"
#include "perf_time.h"

/** Times flags and the layout, into round_trip and layout. Collective. */
xep_status_t perf_time_parts(perf_t *perf, perf_times_t *times_p);

#endif
