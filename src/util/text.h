/* SPDX-License-Identifier: BSD-3-Clause */

/** Parts of sentences: readable sizes, and the closest known word for a misspelt one; and what files of /proc say. */
#ifndef XEP_UTIL_TEXT_H
#define XEP_UTIL_TEXT_H

#include <stddef.h>
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

/* ---- files of /proc and /sys ---- */

/** The begin of a file as text, "" if it cannot be read. Returns whether there is any. */
int xep_text_read(const char *path, char *text, size_t bytes);

/** What follows a name at the begin of a line of text, behind colons and blanks; NULL: there is no such line. */
const char *xep_text_find(const char *text, const char *name);

#endif
