/* SPDX-License-Identifier: BSD-3-Clause */

/** What ranks make known under names (PMIx_Publish), for all ranks of the job. */
#ifndef RUN_NAMES_H
#define RUN_NAMES_H

#include <stdint.h>

#include <pmix.h>
#include <pmix_server.h>

/* As run_server.c's table of what libpmix asks of its host has them. Thread-safe. */
pmix_status_t run_names_publish(const pmix_proc_t *proc, const pmix_info_t info[], size_t ninfo, pmix_op_cbfunc_t done,
                                void *arg);
pmix_status_t run_names_unpublish(const pmix_proc_t *proc, char **keys, const pmix_info_t info[], size_t ninfo,
                                  pmix_op_cbfunc_t done, void *arg);
pmix_status_t run_names_lookup(const pmix_proc_t *proc, char **keys, const pmix_info_t info[], size_t ninfo,
                               pmix_lookup_cbfunc_t done, void *arg);

/** Forgets the names of a rank that has ended. */
void run_names_forget(uint32_t rank);

#endif
