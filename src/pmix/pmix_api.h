/* SPDX-License-Identifier: BSD-3-Clause */

/** libpmix, loaded at first use: the library also loads without it. */
#ifndef XEP_PMIX_API_H
#define XEP_PMIX_API_H

#include <pmix.h>

/* X(name of ours, name in the library without its PMIx_) */
/* clang-format off */
#define XEP_PMIX_FUNCTIONS(X) \
    X(init, Init) X(initialized, Initialized) X(finalize, Finalize) X(put, Put) X(commit, Commit) \
    X(fence_nb, Fence_nb) X(get_nb, Get_nb) X(publish_nb, Publish_nb) X(unpublish_nb, Unpublish_nb) \
    X(lookup_nb, Lookup_nb) X(register_event_handler, Register_event_handler) X(error_string, Error_string) \
    X(get_version, Get_version)
/* clang-format on */

typedef struct xep_pmix_api {
#define XEP_PMIX_FUNCTION(_field, _name) __typeof__(&PMIx_##_name) _field;
    XEP_PMIX_FUNCTIONS(XEP_PMIX_FUNCTION)
#undef XEP_PMIX_FUNCTION
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
