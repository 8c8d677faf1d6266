/* SPDX-License-Identifier: BSD-3-Clause */

/** Checks of dispatches in pieces. */
#ifndef XEP_API_CHECK_PIECES_H
#define XEP_API_CHECK_PIECES_H

#include "buffer.h"

/** What XEP_DISPATCH_PIECES needs, where it is set. */
xep_status_t xep_check_pieces(const xep_buffer_t *buffer, const xep_dispatch_args_t *args);

/** Whether a handle may be combined now, with args of the kind of its earlier pieces. */
xep_status_t xep_check_combined_pieces(const xep_handle_t *handle, const xep_combine_args_t *args);

/** args NULL: there are no outputs; else outputs are what the mode is given, defaults filled in. */
xep_status_t xep_check_next(xep_handle_t *handle, const xep_next_args_t *args, xep_combine_args_t *outputs);

#endif
