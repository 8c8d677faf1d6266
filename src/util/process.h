/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * This process: the library in it, the files it was loaded from, whether its environment is to be trusted, its forks
 * and threads.
 */
#ifndef XEP_UTIL_PROCESS_H
#define XEP_UTIL_PROCESS_H

#include <pthread.h>
#include <stdint.h>

#include <xep/status.h>
#include <xep/version.h>

/** As one number, which processes that meet compare for equality; in hexadecimal it reads as major, minor, patch. */
#define XEP_OWN_VERSION ((uint32_t)(XEP_VERSION_MAJOR << 16 | XEP_VERSION_MINOR << 8 | XEP_VERSION_PATCH))

/**
 * The file that the code or data at address was loaded from, by the name that the loader got; "": none. Valid while
 * that file is loaded; not to be freed.
 */
const char *xep_loaded_from(const void *address);

/* ---- programs that have more rights than who starts them ---- */

/**
 * XEP_ERR_INVALID only in such a program, if a variable of that prefix is set: the library that reads it could be made
 * to write files or load code.
 */
xep_status_t xep_secure_check(const char *prefix);

/* ---- forks ---- */

/** One more in a fork than in its parent. Written in the fork before it has a second thread. */
extern unsigned xep_forks;

/** Starts counting; a no-op the second time. Returns 0, or -1 without memory. */
int xep_forks_begin(void);

/* ---- threads of the library ---- */

/** Starts a thread that blocks all signals: handlers belong to the program's threads. Returns 0 or an errno. */
int xep_thread_start(pthread_t *thread, void *(*run)(void *arg), void *arg);

/** A condition whose times are those of xep_clock_ns(). */
void xep_cond_open(pthread_cond_t *cond);

#endif
