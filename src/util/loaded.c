/* SPDX-License-Identifier: BSD-3-Clause */

#define _GNU_SOURCE
#include "loaded.h"

#include <dlfcn.h>
#include <stddef.h>

const char *xep_loaded_from(const void *address)
{
    Dl_info info;
    return dladdr(address, &info) != 0 && info.dli_fname != NULL ? info.dli_fname : "";
}
