/* SPDX-License-Identifier: BSD-3-Clause */

/** Memory that all ranks of one machine share, and flags in it. */
#ifndef PERF_SHARED_H
#define PERF_SHARED_H

#include <stdatomic.h>

#include "perf.h"

/**
 * So many bytes of zeros, which all ranks see and which have no name any more; the same number on every rank. NULL:
 * there is none on some rank, and errno says why on all. All ranks are on one machine. Collective.
 */
void *perf_share(perf_t *perf, size_t bytes);

/** Waits until a word has reached a value. That its writer has died ends the run by the launcher. */
void perf_await(const _Atomic uint64_t *word, uint64_t value);

#endif
