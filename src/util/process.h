/* SPDX-License-Identifier: BSD-3-Clause */

/** This process: the files it was loaded from, whether its environment is to be trusted, and its forks. */
#ifndef XEP_UTIL_PROCESS_H
#define XEP_UTIL_PROCESS_H

#include <xep/status.h>

/**
 * The file that the code or data at address was loaded from, as the loader was given its name; "": from none. Valid
 * while that file is loaded: not to be freed, to be copied by whoever keeps it longer.
 */
const char *xep_loaded_from(const void *address);

/* ---- programs that have more rights than who starts them ---- */

/**
 * XEP_ERR_INVALID, in such a program alone: a variable of that prefix is set, and the library that reads those would
 * write files or load code as they say.
 */
xep_status_t xep_secure_check(const char *prefix);

/* ---- forks ---- */

/** Larger by one in a fork than in its parent. Written there before it has a second thread. */
extern unsigned xep_forks;

/** Counts from here on; again: a no-op. 0, or -1 without memory. */
int xep_forks_begin(void);

#endif
