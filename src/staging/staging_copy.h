/* SPDX-License-Identifier: BSD-3-Clause */

/** Copies between the device and the host. */
#ifndef XEP_STAGING_COPY_H
#define XEP_STAGING_COPY_H

#include "buffer.h"

/** A matrix and its copy, and what the caller calls it. Rows are so many bytes long. */
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

#endif
