/* SPDX-License-Identifier: BSD-3-Clause */

/** Dispatches whose rows come in pieces: the next piece, the outputs of one, and all of them in a loop. */
#ifndef EXT_PIECES_H
#define EXT_PIECES_H

#include "ext_handle.h"

/** Handle.next(), next_async(), give(), pieces(). */
extern const char ext_pieces_next_doc[], ext_pieces_next_async_doc[], ext_pieces_give_doc[], ext_pieces_doc[];
PyObject *ext_pieces_next(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names);
PyObject *ext_pieces_next_async(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names);
PyObject *ext_pieces_give(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names);
PyObject *ext_pieces_of(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names);

/** Of a dispatch of which rows are here: when they are the last, nothing reads what it was given any more. */
void ext_pieces_came(ext_handle_t *handle);

/**
 * Where a call has no x, what give() was told in its place: at are the numbers of x, topk_weights and dtype in values.
 * What holds them, to be given up when the call is done; NULL: nothing is held.
 */
PyObject *ext_pieces_given(const ext_handle_t *handle, PyObject **values, const int at[3]);

/** -1: an exception is set. */
int ext_pieces_ready(PyObject *module);

#endif
