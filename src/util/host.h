/* SPDX-License-Identifier: BSD-3-Clause */

/** Which machine (or container that looks like one) this process runs on. */
#ifndef XEP_UTIL_HOST_H
#define XEP_UTIL_HOST_H

#include <stdint.h>

/** Equal for processes that share a kernel boot, an IPC and a process namespace; never 0. */
uint64_t xep_host_identity(void);

/** Equal for processes that can look one another up by number and start: kernel, process and time namespace. */
uint64_t xep_host_processes(void);

/** Equal for processes that share a kernel boot and a user namespace. */
uint64_t xep_host_users(void);

/** Equal for processes that share network interfaces, and so reach each other by loopback; 0: not known. */
uint64_t xep_host_network(void);

/** Equal for processes that read the same monotonic clock; 0: not known. */
uint32_t xep_host_clock(void);

/** Whether a process of this host is the same user's, whatever namespace it is in; 1 where that cannot be seen. */
int xep_host_is_own_user(int32_t pid);

/** Equal for processes of one kernel, in whatever containers; 0: not known. */
uint64_t xep_host_kernel(void);

/** Equal for processes of one kernel for which the path leads to the same file; 0: not known. */
uint64_t xep_host_file(const char *path);

/**
 * All of the above are names, which machines resumed from one snapshot share. What a process shows under its word is
 * seen only by processes of the same kernel and namespace, whoever their user is.
 */
typedef enum { XEP_HOST_SHOWS_PROCESSES, XEP_HOST_SHOWS_NETWORK, XEP_HOST_SHOWN } xep_host_shown_t;

typedef struct xep_host_word {
    uint64_t word; /* 0: nothing is shown, as the kernel cannot */
    int files[XEP_HOST_SHOWN];
} xep_host_word_t;

/** Draws a word that no other rank has, and shows it until xep_host_hide(), which may be called twice. */
void xep_host_show(uint32_t rank, xep_host_word_t *own);
void xep_host_hide(xep_host_word_t *own);

/** Whether some process in this namespace shows the word; 1 if one of the two cannot show any. */
int xep_host_sees(const xep_host_word_t *own, xep_host_shown_t what, uint64_t word);

/** Whether the process of this host has ended. start is what xep_host_start() said in it. */
int xep_host_process_gone(int32_t pid, uint64_t start);

/** When a process began, in clock ticks since boot; 0 when that cannot be read. */
uint64_t xep_host_start(int32_t pid);

#endif
