/* SPDX-License-Identifier: BSD-3-Clause */

#define _GNU_SOURCE
#include "ucp_library.h"

#include <dlfcn.h>

#include <ucp/api/ucp.h>

unsigned xep_ucp_version_number(void)
{
    unsigned major, minor, release;
    ucp_get_version(&major, &minor, &release);
    return major * 100 + minor;
}

const char *xep_ucp_version(void)
{
    return ucp_get_version_string();
}

const char *xep_ucp_path(void)
{
    Dl_info info;
    return dladdr((void *)ucp_get_version, &info) != 0 && info.dli_fname != NULL ? info.dli_fname : "";
}
