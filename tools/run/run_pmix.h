/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * libpmix, loaded at run time, so that xep_run can say what to do where there is none. PMIx's macros are not used:
 * which functions they call depends on the version of its headers.
 */
#ifndef RUN_PMIX_H
#define RUN_PMIX_H

#include <stdint.h>

/* both: the names of the keys are in the client's header */
#include <pmix.h>
#include <pmix_server.h>

typedef struct run_pmix {
    __typeof__(&PMIx_Error_string) error_string;
    __typeof__(&PMIx_Notify_event) notify_event;
    __typeof__(&PMIx_generate_ppn) generate_ppn;
    __typeof__(&PMIx_generate_regex) generate_regex;
    __typeof__(&PMIx_server_init) server_init;
    __typeof__(&PMIx_server_register_client) server_register_client;
    __typeof__(&PMIx_server_register_nspace) server_register_nspace;
    __typeof__(&PMIx_server_setup_fork) server_setup_fork;
    pmix_status_t (*value_load)(pmix_value_t *, const void *, pmix_data_type_t);
    void (*value_destruct)(pmix_value_t *); /* from 4.2 on, else NULL */
} run_pmix_t;

/** NULL after a message. */
const run_pmix_t *run_pmix_load(void);

/** The folder that PMIx has its parts in where they came with xep_run (in ../lib); NULL: it knows better itself. */
const char *run_pmix_prefix(const run_pmix_t *pmix);

/** PMIx_server_init(), with a store of what ranks publish that a rank which is killed cannot lock. */
pmix_status_t run_pmix_serve(const run_pmix_t *pmix, pmix_server_module_t *module, pmix_info_t *infos, size_t ninfos);

/** Copies data into an info that was zero. */
void run_pmix_info_set(const run_pmix_t *pmix, pmix_info_t *info, const char *key, const void *data,
                       pmix_data_type_t type);

/** Frees what infos hold, and not the array. */
void run_pmix_infos_clear(const run_pmix_t *pmix, pmix_info_t *infos, size_t ninfos);

pmix_proc_t run_pmix_proc(const char *nspace, uint32_t rank);

#endif
