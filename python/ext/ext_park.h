/* SPDX-License-Identifier: BSD-3-Clause */

/** More handles than slots: those used last keep theirs, of the others what is known of their routing is kept. */
#ifndef EXT_PARK_H
#define EXT_PARK_H

#include "ext_handle.h"

/** Before a dispatch: where as many handles have slots as may, the one used longest ago gives up its own. -1: an
 *  exception is set. */
int ext_park_make_room(ext_buffer_t *buffer);

/** A dispatch has begun. Nothing, where no number was set. */
void ext_park_add(ext_handle_t *handle);

/** It was used. Nothing of one that is not among those. */
void ext_park_use(const ext_handle_t *handle);

/** It has no slot any more. Its place is still counted: what a rank has dropped is known to no other. */
void ext_park_forget(const ext_handle_t *handle);

/** All of them are gone. */
void ext_park_forget_all(ext_buffer_t *buffer);

/** -1: an exception is set. */
int ext_park_ready(PyObject *module);

#endif
