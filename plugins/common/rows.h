/* SPDX-License-Identifier: BSD-3-Clause */

/** How long rows are. */
#ifndef XEP_ROWS_H
#define XEP_ROWS_H

#include <stddef.h>
#include <stdint.h>

#include <xep/xep.h>

/** Bytes of an element; 0 for a value that is not a type, as a peer may have written it. */
static inline size_t xep_elem_bytes(xep_dtype_t dtype)
{
    static const uint8_t bytes[] = {[XEP_BF16] = 2, [XEP_FP16] = 2,  [XEP_FP32] = 4,  [XEP_E4M3] = 1, [XEP_E5M2] = 1,
                                    [XEP_U8] = 1,   [XEP_INT32] = 4, [XEP_INT64] = 8, [XEP_FP64] = 8};
    return (unsigned)dtype < sizeof bytes ? bytes[dtype] : 0;
}

/** Bytes between rows of this many bytes. */
static inline size_t xep_row_stride(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

#endif
