/* SPDX-License-Identifier: BSD-3-Clause */

/** The shape, the memory, the buffer and the inputs of a run. */
#ifndef PERF_SETUP_H
#define PERF_SETUP_H

#include "perf.h"

/** Chooses the shape, makes routing, memory, buffer and inputs. 0 or the exit status, said why. Collective. */
int perf_setup(perf_t *perf);
void perf_teardown(perf_t *perf);

/** Of the buffer of --recv-rows. */
void perf_pieces_params(const perf_t *perf, xep_buffer_params_t *params_p);

/** Routing and inputs of another seed. */
int perf_reseed(perf_t *perf, uint64_t seed);

#endif
