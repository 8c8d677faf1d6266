/* SPDX-License-Identifier: BSD-3-Clause */

/** The dispatches of a buffer that keep their slots, in the order in which they were used. */
#ifndef EXT_RECENT_H
#define EXT_RECENT_H

#include "ext_python.h"

struct ext_handle;

typedef struct ext_recent {
    struct ext_handle **handles; /* not counted, that used last at the end; NULL: its handle has ended */
    Py_ssize_t count, most;      /* most: 0: all handles keep their slots, and none is here */
    int stays;                   /* 1: what is dispatched now keeps its slot, and is not here */
    int when_full;               /* 1: all keep their slots until none is free, which each rank finds alone */
} ext_recent_t;

/** Nothing, where no number was set. */
void ext_recent_add(ext_recent_t *recent, struct ext_handle *handle);

/** It was used. Nothing of one that is not here. */
void ext_recent_use(ext_recent_t *recent, const struct ext_handle *handle);

/** It has no slot any more. Its place is still counted unless when_full: what a rank drops is known to no other. */
void ext_recent_forget(ext_recent_t *recent, const struct ext_handle *handle);

/** Takes one out, with its place. Nothing of one that is not here. */
void ext_recent_remove(ext_recent_t *recent, const struct ext_handle *handle);

/** Takes the one used longest ago out; NULL: it has ended. There must be one. */
struct ext_handle *ext_recent_oldest(ext_recent_t *recent);

#endif
