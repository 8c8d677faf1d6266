/* SPDX-License-Identifier: BSD-3-Clause */

/** What --simulate prints: a table for people, JSON for programs. */
#ifndef PERF_FORECAST_H
#define PERF_FORECAST_H

#include "perf_simulate.h"

/** The exit status of xep_perf. */
int perf_forecast_report(const perf_simulation_t *simulation);

#endif
