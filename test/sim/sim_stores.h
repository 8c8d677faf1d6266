/* SPDX-License-Identifier: BSD-3-Clause */

/** Every single store of this thread into the heaps of a world, as it is about to happen. */
#ifndef SIM_STORES_H
#define SIM_STORES_H

#include "sim_world.h"

typedef void (*sim_store_fn)(void *arg, const char *at);

/**
 * Until unwatch, which returns whether there was a watch, before is called before each store into a heap. It ends the
 * watch if it does not return, or lets others store, and begins it again behind these. Returns whether this machine can
 * do it. Not nested.
 */
int sim_stores_watch(sim_world_t *world, sim_store_fn before, void *arg);
int sim_stores_unwatch(void);

#endif
