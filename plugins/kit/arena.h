/* SPDX-License-Identifier: BSD-3-Clause */

/** All private arrays of a mode in one block. */
#ifndef XEP_ARENA_H
#define XEP_ARENA_H

#include "carve.h"
#include "kit.h"

/** Lays the arrays of a mode, by xep_carve_array(): called twice, first to measure. */
typedef void (*xep_arena_fn)(void *mode, xep_carve_t *arena);

/**
 * Zeroed memory for all that carve lays, which close of the kit frees. Its pages are touched here, not by the first
 * operations, unless lazily: then worst cases that are never met cost nothing.
 */
xep_status_t xep_arena_open(xep_kit_t *kit, xep_arena_fn carve, int lazily);

#endif
