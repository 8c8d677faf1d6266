/* SPDX-License-Identifier: BSD-3-Clause */

/** More handles than slots: those used last keep theirs, of the others what is known of their routing is kept. */
#ifndef EXT_PARK_H
#define EXT_PARK_H

#include "ext_handle.h"

/** Before a dispatch: where as many handles have slots as may, the one used longest ago gives up its own. -1: an
 *  exception is set. */
int ext_park_make_room(ext_buffer_t *buffer);

/** -1: an exception is set. */
int ext_park_ready(PyObject *module);

#endif
