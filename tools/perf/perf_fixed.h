/* SPDX-License-Identifier: BSD-3-Clause */

/** What an operation costs besides its bytes. */
#ifndef PERF_FIXED_H
#define PERF_FIXED_H

#include "perf.h"

/** Times flags and the layout, as perf_times_t has them; *round_trip_p stays where none is measured. Collective. */
xep_status_t perf_fixed_parts(perf_t *perf, double *round_trip_p, double *layout_p);

#endif
