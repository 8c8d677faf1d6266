/* SPDX-License-Identifier: BSD-3-Clause */

/** How close two words are, for the hint of an error: did you mean? */
#ifndef XEP_UTIL_SPELLING_H
#define XEP_UTIL_SPELLING_H

#define XEP_SPELLING_FAR 1000u

/**
 * Letters to add, drop or change, whatever their case, where these are at most a third of the word; 2 where one begins
 * or ends with the other, as LOG_LEVEL and LOG; else XEP_SPELLING_FAR.
 */
unsigned xep_spelling_distance(const char *word, const char *known);

#endif
