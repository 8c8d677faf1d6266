/* SPDX-License-Identifier: BSD-3-Clause */

/** Bootstrap over PMIx: the ranks that the launcher has started. */
#ifndef XEP_PMIX_BOOT_H
#define XEP_PMIX_BOOT_H

#include "boot.h"

/**
 * XEP_ERR_UNSUPPORTED: no launcher with PMIx has started this process; the caller may go on as a singleton if
 * xep_boot_single_allowed() says so. XEP_ERR_BOOT: there is one, but it cannot be used; the reason has the remedy.
 *
 * PMIx is initialised by the first call and finalised when the process exits, not by the last close:
 * launchers over several nodes hang at the end of a job whose ranks have initialised it twice. Every
 * group has all ranks of the job as members, and all ranks open, use and close their groups in one order.
 */
xep_status_t xep_pmix_boot_open(int32_t timeout_ms, xep_boot_t **boot_p);

/** The libpmix in use; if it cannot be loaded: "", and the reason in place of the path. Static storage. */
const char *xep_pmix_version(void);
const char *xep_pmix_path(void);

#endif
