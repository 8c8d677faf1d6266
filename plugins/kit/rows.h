/* SPDX-License-Identifier: BSD-3-Clause */

/** Elements, rows and indices of the user: their sizes, and how they are read. */
#ifndef XEP_ROWS_H
#define XEP_ROWS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <xep/xep.h>

/** Bytes of an element; 0 for a value that is not a type, as a peer may have written it. */
static inline size_t xep_elem_bytes(xep_dtype_t dtype)
{
#define XEP_ELEM_BYTES_(_name, _value, _bytes, _text) [_name] = _bytes,
    static const uint8_t bytes[] = {XEP_DTYPE_LIST(XEP_ELEM_BYTES_)};
#undef XEP_ELEM_BYTES_
    return (unsigned)dtype < sizeof bytes ? bytes[dtype] : 0;
}

/** Its name, as users read it; NULL for a value that is not a type. */
static inline const char *xep_elem_name(xep_dtype_t dtype)
{
#define XEP_ELEM_NAME_(_name, _value, _bytes, _text) [_name] = _text,
    static const char *const names[] = {XEP_DTYPE_LIST(XEP_ELEM_NAME_)};
#undef XEP_ELEM_NAME_
    return (unsigned)dtype < sizeof names / sizeof names[0] ? names[dtype] : NULL;
}

/** Bytes between rows of this many bytes. */
static inline size_t xep_row_stride(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

/** Bytes of a row that is dispatched, that is combined. */
static inline size_t xep_dispatch_row_bytes(const xep_dispatch_args_t *args)
{
    return args->hidden * xep_elem_bytes(args->dtype);
}

static inline size_t xep_combine_row_bytes(const xep_combine_args_t *args)
{
    return args->hidden * xep_elem_bytes(args->dtype);
}

/** Selection k of a row of topk_idx; wide: int64_t. Strides are the caller's, so any alignment will do. */
static inline int64_t xep_idx_at(const char *row, uint32_t k, int wide)
{
    int64_t index;
    int32_t narrow;
    if (wide) {
        memcpy(&index, row + k * sizeof index, sizeof index);
        return index;
    }
    memcpy(&narrow, row + k * sizeof narrow, sizeof narrow);
    return narrow;
}

/** How many of some ascending numbers are below one; they lie stride bytes apart. */
static inline uint64_t xep_count_below(const uint32_t *numbers, size_t stride, uint64_t count, uint64_t limit)
{
    uint64_t low = 0;
    while (low < count) {
        const uint64_t middle = low + (count - low) / 2;
        if (*(const uint32_t *)(const void *)((const char *)numbers + middle * stride) < limit) low = middle + 1;
        else count = middle;
    }
    return low;
}

#endif
