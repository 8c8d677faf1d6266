/* SPDX-License-Identifier: BSD-3-Clause */

/** Counts forks, so that a process tells what it made from what it inherited. */
#ifndef XEP_UTIL_FORK_H
#define XEP_UTIL_FORK_H

/** Larger by one in a fork than in its parent. Written there before it has a second thread. */
extern unsigned xep_forks;

/** Counts from here on; again: a no-op. 0, or -1 without memory. */
int xep_forks_begin(void);

#endif
