/* SPDX-License-Identifier: BSD-3-Clause */

/** What a mode may call and know: its xep_env_t. */
#ifndef XEP_BUFFER_ENV_H
#define XEP_BUFFER_ENV_H

#include "buffer.h"

/** Operations that move so many bytes bypass the caches (XEP_STREAM). The heaps are open. */
uint64_t xep_buffer_stream_bytes(const xep_buffer_t *buffer);

/** All but the threads and the regions, which are known before there is a heap. */
void xep_buffer_fill_env(xep_buffer_t *buffer);

#endif
