/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * A name that the launcher's PMIx server keeps (PMIx_Publish): processes of any job of the same launcher can find what
 * a growing group publishes under it.
 */
#ifndef XEP_PMIX_NAMES_H
#define XEP_PMIX_NAMES_H

#include "rendezvous.h"

/** A path with this prefix is such a name. */
#define XEP_PMIX_NAME_PREFIX  "pmix:"
#define XEP_PMIX_DEFAULT_NAME "pmix:xep" /* if a program gives neither a path nor a function */

enum { XEP_PMIX_NAME_BYTES = 128 /* with its 0, and without the prefix */ };

/** path: begins with the prefix. XEP_ERR_INVALID: what follows is too long, or nothing. */
xep_status_t xep_pmix_rendezvous(const char *path, int32_t timeout_ms, xep_rendezvous_t *rendezvous_p);

#endif
