/* SPDX-License-Identifier: BSD-3-Clause */

/** The reason of this thread's last error: what xep_last_error() returns. */
#ifndef XEP_UTIL_ERROR_H
#define XEP_UTIL_ERROR_H

#include <stdarg.h>

#include <xep/xep.h>

enum { XEP_REASON_BYTES = 1024 };

/** Sets the reason and returns status. */
xep_status_t xep_fail(xep_status_t status, const char *format, ...) __attribute__((format(printf, 2, 3)));
xep_status_t xep_vfail(xep_status_t status, const char *format, va_list args) __attribute__((format(printf, 2, 0)));

/** An error that another process has told, where this library knows it; else otherwise, which is an error, too. */
xep_status_t xep_status_told(int64_t told, xep_status_t otherwise);

#endif
