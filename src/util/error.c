/* SPDX-License-Identifier: BSD-3-Clause */

/* Each thread has a buffer of its own, so that the sentence stays until the caller asks for it. */
#include "error.h"

#include <stdio.h>

#define XEP_STATUS_CASE_(_name, _value, _text) {_name, #_name, _text},

static const struct {
    xep_status_t status;
    const char *name, *text;
} statuses[] = {XEP_STATUS_LIST(XEP_STATUS_CASE_)};
enum { NSTATUSES = sizeof statuses / sizeof statuses[0] };

static _Thread_local char reason[XEP_REASON_BYTES];

/* Callers may pass any number: a program may print what it got from elsewhere. */
const char *xep_status_name(xep_status_t status)
{
    for (size_t i = 0; i < NSTATUSES; i++)
        if (statuses[i].status == status) return statuses[i].name;
    return "XEP_ERR_UNKNOWN";
}

const char *xep_status_text(xep_status_t status)
{
    for (size_t i = 0; i < NSTATUSES; i++)
        if (statuses[i].status == status) return statuses[i].text;
    return "unknown status";
}

xep_status_t xep_status_told(int64_t told, xep_status_t otherwise)
{
    for (size_t i = 0; i < NSTATUSES; i++)
        if (told < 0 && statuses[i].status == told) return statuses[i].status;
    return otherwise;
}

const char *xep_last_error(void)
{
    return reason;
}

xep_status_t xep_vfail(xep_status_t status, const char *format, va_list args)
{
    char text[XEP_REASON_BYTES]; /* an argument may be the old reason */
    vsnprintf(text, sizeof text, format, args);
    snprintf(reason, sizeof reason, "%s", text);
    return status;
}

xep_status_t xep_fail(xep_status_t status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    xep_vfail(status, format, args);
    va_end(args);
    return status;
}
