/* SPDX-License-Identifier: BSD-3-Clause */

/** Streaming copies: they bypass the caches, so that what is not read soon does not drive out what is. */
#ifndef XEP_UTIL_STREAMING_H
#define XEP_UTIL_STREAMING_H

#include <stddef.h>

/** memcpy; where the machine can, the lines written are not read first, and do not stay. */
void xep_streaming_copy(void *dst, const void *src, size_t bytes);

/** Orders what this thread copied so before its later stores. */
void xep_streaming_fence(void);

#endif
