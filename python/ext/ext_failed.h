/* SPDX-License-Identifier: BSD-3-Clause */

/** What becomes of an operation that fails: its exception, its place among the calls of this rank, and its arrays. */
#ifndef EXT_FAILED_H
#define EXT_FAILED_H

#include "ext_buffer.h"

/** Of what the library does not know: the rows that it counted. */
#define EXT_UNKNOWN_ROWS UINT64_MAX

/** The exception of an operation, with the reason of this thread's last call. rows: sent to this rank. */
PyObject *ext_failed_error(const ext_buffer_t *buffer, xep_status_t status, uint64_t rows);

/** Sets it; NULL. */
PyObject *ext_failed_raise(const ext_buffer_t *buffer, xep_status_t status, uint64_t rows);

/** Counts an operation that this module refuses, its exception set, as the library counts those it refuses; NULL. */
PyObject *ext_failed_refuse(const ext_buffer_t *buffer);

/**
 * Keeps the arrays of an operation that has failed with status, where the transport may go on reading them until a
 * reset, or the end of the group. kept: taken over; NULL: none.
 */
void ext_failed_keep(ext_buffer_t *buffer, xep_status_t status, PyObject *kept);

/** The same for a call that waited: its arguments, of which some may be NULL. An exception that is set stays set. */
void ext_failed_keep_values(ext_buffer_t *buffer, xep_status_t status, PyObject *const *values, int count);

#endif
