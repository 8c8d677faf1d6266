/* SPDX-License-Identifier: BSD-3-Clause */

#include "ext_failed.h"

#include "ext_args.h"

/*
 * BusyError says how many slots only arrays keep: a list of tensors that a program forgot is the most frequent cause,
 * and the library cannot know of it. An overflow carries how many rows there were, for a second try.
 */
PyObject *ext_failed_error(const ext_buffer_t *buffer, xep_status_t status, uint64_t rows)
{
    const Py_ssize_t alive = ext_slots_orphans(&buffer->slots);
    char reason[512];
    if (status == XEP_ERR_BUSY && alive > 0) {
        snprintf(reason, sizeof reason, "%s; %zd only for arrays of rows that are still alive", lib.last_error(),
                 alive);
        return ext_error_new(status, reason);
    }
    PyObject *error = ext_error_new(status, NULL);
    if (error == NULL || status != XEP_ERR_OVERFLOW || rows == EXT_UNKNOWN_ROWS) return error;
    PyObject *count = PyLong_FromUnsignedLongLong(rows);
    if (count == NULL || PyObject_SetAttrString(error, "rows", count) != 0) Py_CLEAR(error);
    Py_XDECREF(count);
    return error;
}

PyObject *ext_failed_raise(const ext_buffer_t *buffer, xep_status_t status, uint64_t rows)
{
    return ext_raise_error(ext_failed_error(buffer, status, rows));
}

/*
 * Where this rank alone refuses a call, its next one must not pair with the one that the others are in. The library
 * sees to that for what it refuses itself: so it is given a call without anything, which it refuses in place of this
 * one.
 */
PyObject *ext_failed_refuse(const ext_buffer_t *buffer)
{
    if (buffer->buffer == NULL || buffer->group->forks != ext_forks()) return NULL;
    Py_BEGIN_ALLOW_THREADS
    lib.dispatch(buffer->buffer, NULL, NULL, NULL);
    Py_END_ALLOW_THREADS
    return NULL;
}

/* ---- what the transport may still read ---- */

/* After the other errors nothing was sent, or all has arrived. */
static int leaves_transfers(xep_status_t status)
{
    return status == XEP_ERR_TIMEOUT || status == XEP_ERR_PEER || status == XEP_ERR_PROTOCOL ||
           status == XEP_ERR_TRANSPORT || status == XEP_ERR_BROKEN || status == XEP_ERR_ABORTED;
}

void ext_failed_keep(ext_buffer_t *buffer, xep_status_t status, PyObject *kept)
{
    if (kept != NULL && leaves_transfers(status)) ext_group_keep(&buffer->left, kept);
    else Py_XDECREF(kept);
}

/* With the first error the buffer breaks. Later calls begin nothing, and programs may make them again and again. */
void ext_failed_keep_values(ext_buffer_t *buffer, xep_status_t status, PyObject *const *values, int count)
{
    PyObject *type, *value, *trace;
    if (buffer->left != NULL || !leaves_transfers(status)) return;
    PyErr_Fetch(&type, &value, &trace);
    ext_failed_keep(buffer, status, ext_args_keep(NULL, values, count));
    PyErr_Restore(type, value, trace);
}
