/* SPDX-License-Identifier: BSD-3-Clause */

/** libpmix, loaded at first use: the library also loads without it. */
#ifndef XEP_PMIX_API_H
#define XEP_PMIX_API_H

#include <pmix.h>

typedef struct xep_pmix_api {
    __typeof__(&PMIx_Init) init;
    __typeof__(&PMIx_Initialized) initialized;
    __typeof__(&PMIx_Finalize) finalize;
    __typeof__(&PMIx_Put) put;
    __typeof__(&PMIx_Commit) commit;
    __typeof__(&PMIx_Fence_nb) fence_nb;
    __typeof__(&PMIx_Get) get;
    __typeof__(&PMIx_Get_nb) get_nb;
    __typeof__(&PMIx_Publish_nb) publish_nb;
    __typeof__(&PMIx_Unpublish_nb) unpublish_nb;
    __typeof__(&PMIx_Lookup_nb) lookup_nb;
    __typeof__(&PMIx_Register_event_handler) register_event_handler;
    __typeof__(&PMIx_Error_string) error_string;
    __typeof__(&PMIx_Get_version) get_version;
} xep_pmix_api_t;

/** The functions, or NULL; then xep_pmix_api_path() says why. Thread-safe; the library is never unloaded. */
const xep_pmix_api_t *xep_pmix_api(void);

/** "4.2.2"; "" when it cannot be loaded. Static storage. */
const char *xep_pmix_api_version(void);

/** The folder with PMIx's components, if libpmix came with this library in one folder lib; NULL: left to PMIx. */
const char *xep_pmix_api_prefix(void);

/** The file, or why it cannot be loaded. Static storage. */
const char *xep_pmix_api_path(void);

#endif
