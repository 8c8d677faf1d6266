/* SPDX-License-Identifier: BSD-3-Clause */

/** /dev/shm, which UCX's transport posix lives in: for the sentence of an error that it is likely to have caused. */
#ifndef XEP_SHM_H
#define XEP_SHM_H

#include <stdint.h>

enum { XEP_SHM_HINT_BYTES = 192 };

/** " (/dev/shm ...: what to do)" where it has no room for so many bytes, else "". */
void xep_shm_hint(uint64_t bytes, char text[XEP_SHM_HINT_BYTES]);

#endif
