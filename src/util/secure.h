/* SPDX-License-Identifier: BSD-3-Clause */

/** Programs that have more rights than who starts them: what they are told by the environment is not to be trusted. */
#ifndef XEP_SECURE_H
#define XEP_SECURE_H

#include <xep/status.h>

/**
 * XEP_ERR_INVALID, in such a program alone: a variable of that prefix is set, and the library that reads those would
 * write files or load code as they say.
 */
xep_status_t xep_secure_check(const char *prefix);

#endif
