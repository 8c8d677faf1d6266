/* SPDX-License-Identifier: BSD-3-Clause */

/** Sizes as people read them. */
#ifndef XEP_UTIL_UNITS_H
#define XEP_UTIL_UNITS_H

#include <stdint.h>

enum { XEP_UNITS_BYTES = 24 };

/** "1000 bytes", "1.44 MiB"; returns text. */
const char *xep_units_of(uint64_t bytes, char text[XEP_UNITS_BYTES]);

#endif
