/* SPDX-License-Identifier: BSD-3-Clause */

#include "ucp_transport.h"

#include <stdint.h>

#include <ucp/api/ucp.h>

#include "process.h"

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
    return xep_loaded_from((const void *)(uintptr_t)ucp_get_version);
}
