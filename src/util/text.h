/* SPDX-License-Identifier: BSD-3-Clause */

/** Parts of sentences: readable sizes, and the closest known word for a misspelt one. */
#ifndef XEP_UTIL_TEXT_H
#define XEP_UTIL_TEXT_H

#include <stdint.h>

enum { XEP_UNITS_BYTES = 24 };

/** "1000 bytes", "1.44 MiB"; returns text. */
const char *xep_units_of(uint64_t bytes, char text[XEP_UNITS_BYTES]);

/* ---- did you mean ---- */

#define XEP_SPELLING_FAR 1000u

/**
 * The edit distance, ignoring case, if it is at most a third of the word; 2 if one begins or ends with the other, like
 * LOG_LEVEL and LOG; else XEP_SPELLING_FAR.
 */
unsigned xep_spelling_distance(const char *word, const char *known);

#endif
