/* SPDX-License-Identifier: BSD-3-Clause */

/** Elements and rows: how long they are. */
#ifndef XEP_ROWS_H
#define XEP_ROWS_H

#include <stddef.h>
#include <stdint.h>

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

#endif
