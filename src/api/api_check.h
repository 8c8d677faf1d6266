/* SPDX-License-Identifier: BSD-3-Clause */

/** Checks of what users pass: shapes, types, strides; defaults filled in. */
#ifndef XEP_API_CHECK_H
#define XEP_API_CHECK_H

#include "buffer.h"

xep_status_t xep_check_layout(xep_layout_args_t *args);
xep_status_t xep_check_buffer(const xep_config_t *config, uint32_t nranks, xep_buffer_params_t *params);
xep_status_t xep_check_dispatch(const xep_buffer_t *buffer, xep_dispatch_args_t *args);
xep_status_t xep_check_combine(xep_handle_t *handle, xep_combine_args_t *args);

/** A part of the last one: what goes back, and the bytes of a row of it. */
xep_status_t xep_check_outputs(const xep_handle_t *handle, xep_combine_args_t *args, uint64_t *row_p);

/* ---- api_check_pieces.c ---- */

/* Checks of dispatches in pieces. */

/** What XEP_DISPATCH_PIECES needs, where it is set. */
xep_status_t xep_check_pieces(const xep_buffer_t *buffer, const xep_dispatch_args_t *args);

/** Whether a handle may be combined now, with args of the kind of its earlier pieces. */
xep_status_t xep_check_combined_pieces(const xep_handle_t *handle, const xep_combine_args_t *args);

/** args NULL: there are no outputs; else outputs are what the mode is given, defaults filled in. */
xep_status_t xep_check_next(xep_handle_t *handle, const xep_next_args_t *args, xep_combine_args_t *outputs);

#endif
