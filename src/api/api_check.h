/* SPDX-License-Identifier: BSD-3-Clause */

/** Checks of what users pass: shapes, types, strides; defaults filled in. */
#ifndef XEP_API_CHECK_H
#define XEP_API_CHECK_H

#include <xep/pieces.h>
#include <xep/xep.h>

#include "buffer.h"

/** What a buffer or a layout may have. src_token is an int32. */
enum { XEP_MOST_RANKS = 1 << 20, XEP_MOST_EXPERTS = 1 << 20, XEP_MOST_TOKENS = INT32_MAX };

xep_status_t xep_check_buffer(const xep_config_t *config, uint32_t nranks, xep_buffer_params_t *params);
xep_status_t xep_check_dispatch(const xep_buffer_t *buffer, xep_dispatch_args_t *args);
xep_status_t xep_check_combine(xep_handle_t *handle, xep_combine_args_t *args);

/** A part of the last one: what goes back, and the bytes of a row of it. */
xep_status_t xep_check_outputs(const xep_handle_t *handle, xep_combine_args_t *args, uint64_t *row_p);

/** An array of so many elements, which is NULL only without any, and aligned. */
xep_status_t xep_check_array(const char *name, const void *pointer, uint64_t rows, size_t elem);

/**
 * A matrix [rows] of elements, rows of row_bytes: NULL only without rows. A stride of 0 becomes that of dense rows.
 * topk_idx likewise: by default of int64.
 */
xep_status_t xep_check_matrix(const char *name, const void *pointer, size_t *stride_p, uint64_t rows,
                              uint64_t row_bytes, size_t elem);
xep_status_t xep_check_topk_idx(const void *topk_idx, size_t *stride_p, xep_dtype_t *dtype_p, uint64_t tokens,
                                uint32_t topk);

/* ---- api_check_payloads.c ---- */

/** Scales and payloads. */
xep_status_t xep_check_beside(const xep_buffer_t *buffer, xep_dispatch_args_t *args);

/* ---- api_check_pieces.c ---- */

/** What XEP_DISPATCH_PIECES needs. */
xep_status_t xep_check_pieces(const xep_buffer_t *buffer, const xep_dispatch_args_t *args);

/** Whether a handle of several pieces may be combined now, with args of the kind of its earlier ones. */
xep_status_t xep_check_combined_pieces(const xep_handle_t *handle, const xep_combine_args_t *args);

/** args NULL: there are no outputs; else outputs are what the mode is given, defaults filled in. */
xep_status_t xep_check_next(xep_handle_t *handle, const xep_next_args_t *args, xep_combine_args_t *outputs);

/* ---- api_check_require.c ---- */

/*
 * Checks the object of a call: XEP_ERR_INVALID if it is NULL or was made by the process that this one was forked from.
 */

xep_status_t xep_require_group(const xep_group_t *group);
xep_status_t xep_require_buffer(const xep_buffer_t *buffer);
xep_status_t xep_require_handle(const xep_handle_t *handle);
xep_status_t xep_require_request(const xep_request_t *req);

/** The handle is not released and has nothing in flight; waits for an operation whose request was freed. */
xep_status_t xep_require_idle(xep_handle_t *handle);

/* Structs of callers that were compiled with another version of them. */

/**
 * Copies a caller's struct that begins with its size into the library's own: what the caller does
 * not have is 0, what the library does not know must be 0. name is for the reason.
 */
xep_status_t xep_check_struct(const char *name, const void *user, void *own, size_t own_size);

/** Copies the library's struct out to a caller's that may be shorter or longer; its size stays. */
xep_status_t xep_fill_struct(const char *name, void *user, const void *own, size_t own_size);

/* ---- api_check_memory.c ---- */

/* Arrays that the host reads and writes must be its memory, and outputs must not lie in the memory of a buffer. */

/** XEP_ERR_INVALID: one is a device's. Of a buffer in device memory the mode says what it can use. */
xep_status_t xep_check_dispatch_memory(const xep_buffer_t *buffer, const xep_dispatch_args_t *args);
xep_status_t xep_check_combine_memory(const xep_handle_t *handle, const xep_combine_args_t *args);
xep_status_t xep_check_gather_memory(const xep_handle_t *handle, const void *out);

xep_status_t xep_check_layout_memory(const xep_layout_args_t *args, const xep_layout_t *out);

/** XEP_ERR_INVALID: an output, called name in the sentence, is memory of a buffer of this process. */
xep_status_t xep_check_output(const char *name, const void *address);
xep_status_t xep_check_waits_memory(const xep_waits_t *out);

#endif
