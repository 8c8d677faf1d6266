/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Rows in device memory where some rank is not mapped: the mode is that of host memory, and works on copies. Every slot
 * has memory of the host for what an operation is given, behind the lines of the heap, and memory of the device
 * for what it brings.
 *
 *  take  when an operation is called: its stream is put behind the buffer's mark, copies of what the caller gave are
 *        enqueued, and the mark. The call waits until the stream has come as far as to the rows, or behind them where
 *        the mode does not begin early. The operation then begins as on the host.
 *  look  while it goes on: rows come in parts, behind each of which there is a note. Those that are not there yet are
 *        op.coming, and the mode does without them. The biases of a combine are there with the last part.
 *        In a mode that begins in the call (XEP_BEGINS_IN_CALL) the call goes on with this until all are there.
 *  came  when all rows of a rank are there, which the mode tells while it waits for others: their copies to the device
 *        are enqueued.
 *  show  when the mode has ended it: copies of what came, to the memory of the slot and to the caller's, are enqueued
 *        on the same stream, and then the mark.
 *
 * So when an operation begins, all copies of those that have ended before are done: nothing of a slot is read by the
 * device any more when the host, or a peer that has seen the operation's first word, writes there again.
 */
#ifndef XEP_STAGING_H
#define XEP_STAGING_H

#include "account.h"
#include "buffer.h"

/** Adds the host's bytes to those of a heap, from *begin_p on, and sets the device's. The same on every rank. */
xep_status_t xep_staging_measure(const xep_shape_t *shape, uint64_t recv_rows, uint64_t *begin_p, uint64_t *bytes_p,
                                 uint64_t *device_bytes_p);

/** For a buffer whose heap is open. Local. close: nothing may be enqueued any more; a no-op if it was never opened. */
xep_status_t xep_staging_open(xep_buffer_t *buffer);
void xep_staging_close(xep_buffer_t *buffer);

/* ---- staging_direct.c ---- */

/** Whether the rows of such a buffer will be direct (xep/direct.h), in a twin as large as the heap's region of rows. */
int xep_staging_wants_direct(const xep_config_t *config, const xep_plugin_t *plugin, const xep_shape_t *shape,
                             const xep_buffer_params_t *params);

/** Where they are: makes the twin, and tells it to the heap, which is not connected yet. */
xep_status_t xep_staging_open_direct(xep_buffer_t *buffer);
/** Once the heap is connected: reaches the twins of all ranks. All ranks at once, before any operation. */
xep_status_t xep_staging_connect_direct(const xep_buffer_t *buffer);
void xep_staging_close_direct(xep_buffer_t *buffer);

/** Whether the rows of an operation will be; and where an address of the heap's rows is in the twin. */
int xep_staging_goes_direct(const xep_request_t *req);
char *xep_staging_twin(const xep_buffer_t *buffer, const void *address);

/** xep_env_t.direct. */
extern const xep_direct_ops_t xep_staging_direct_ops;
const xep_direct_ops_t *xep_staging_direct(const xep_buffer_t *buffer);

/* ---- staging_copy.c ---- */

/** A matrix, its copy, and its name for the caller. bytes: of a row. */
typedef struct staged_matrix {
    const char *name;
    void *to;
    size_t to_stride;
    const void *from;
    size_t from_stride;
    uint64_t bytes, rows;
} staged_matrix_t;

/** Enqueues the copies of all that have rows. */
xep_status_t xep_staging_copy(const xep_buffer_t *buffer, const staged_matrix_t *matrices, size_t count, void *stream);

/** XEP_ERR_INVALID: what has rows is not memory of the device. */
xep_status_t xep_staging_check(const xep_buffer_t *buffer, const char *name, const void *address, uint64_t rows);

/** XEP_ERR_INVALID: the stream is of another device, or being captured. */
xep_status_t xep_staging_check_stream(const xep_buffer_t *buffer, void *stream);

/** Finds out which of the rows on their way have arrived; before each step of the request's mode. */
xep_status_t xep_staging_poll(xep_request_t *req);

/* ---- staging_layout.c ---- */

/** args are checked. Waits for the stream. */
xep_status_t xep_staging_layout(xep_buffer_t *buffer, const xep_layout_args_t *args, const xep_layout_t *out);

/* ---- staging_take.c ---- */

/**
 * Replaces the arguments of req, which are checked, by those of the mode. After an error the operation cannot begin,
 * and after a timeout of the stream the buffer is broken.
 */
xep_status_t xep_staging_take(xep_request_t *req);

/** The mode has refused what was taken. */
void xep_staging_refused(const xep_request_t *req);

/** The part that enqueues copies, and does not wait for them. */
xep_status_t xep_staging_take_copies(xep_request_t *req);

/* ---- staging_show.c ---- */

/** The mode has ended the operation with status: returns that, or an error of the device. */
xep_status_t xep_staging_show(xep_request_t *req, xep_status_t status);
xep_status_t xep_staging_show_copies(xep_request_t *req, xep_status_t status); /* of one that was not captured */

/** Fills in what is known of the rows to come, with the places that they will have on the device. */
void xep_staging_show_counts(const xep_request_t *req);

/** xep_env_t.rows_came. */
void xep_staging_rows_came(const xep_env_t *env, const xep_op_t *op, uint32_t rank);

/** xep_handle_recv() and xep_handle_combine_input(). */
const xep_recv_t *xep_staging_recv(const xep_handle_t *handle);
void *xep_staging_input(const xep_handle_t *handle, size_t *stride_p);

/* ---- staging_wait.c ---- */

/** Notes what was enqueued on the stream last, for xep_staging_wait(). */
xep_status_t xep_staging_note(xep_buffer_t *buffer, void *stream);

/**
 * Before a call: where operations were captured its stream may have launches of them, which give handles other rows and
 * use requests. So they end first. The caller holds the buffer. A no-op where nothing was captured.
 */
xep_status_t xep_staging_come(xep_buffer_t *buffer, void *stream, int32_t timeout_ms);

/** Waits until the stream has reached the note, and makes progress meanwhile. A timeout breaks the buffer. */
xep_status_t xep_staging_wait(xep_buffer_t *buffer, xep_waits_kind_t kind, int32_t timeout_ms);

/**
 * For a request that has begun before its rows were there, in a mode that sends within the call: waits for the rows,
 * and lets the operation go on with each part. If they do not come, the request ends with that error.
 */
void xep_staging_stay(xep_request_t *req);

#endif
