/* SPDX-License-Identifier: BSD-3-Clause */

/** Which machine (or container that looks like one) this process runs on. */
#ifndef XEP_CORE_HOST_H
#define XEP_CORE_HOST_H

#include <stdint.h>

/** Equal for processes that share a kernel boot, an IPC and a process namespace; never 0. */
uint64_t xep_host_identity(void);

/** Of the processes that can be looked up by their numbers: kernel and process namespace. */
uint64_t xep_host_processes(void);

/** Equal for processes that share the network's interfaces, so that the loopback interface reaches; 0: not known. */
uint64_t xep_host_network(void);

/** Equal for processes of one user namespace; 0: not known. */
uint64_t xep_host_users(void);

/** Whether a process of this host is the same user's, whatever namespace it is in; 1 where that cannot be seen. */
int xep_host_is_own_user(int32_t pid);

/** Equal for processes of one kernel, in whatever containers; 0: not known. */
uint64_t xep_host_kernel(void);

/** Equal for processes of one kernel to which a path leads to the same file, by whatever name; 0: not known. */
uint64_t xep_host_file(const char *path);

/** Whether the process of this host has ended. start is what xep_host_start() said in it. */
int xep_host_process_gone(int32_t pid, uint64_t start);

/** When a process began, in clock ticks since boot; 0 when that cannot be read. */
uint64_t xep_host_start(int32_t pid);

#endif
