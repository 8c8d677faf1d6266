/* SPDX-License-Identifier: BSD-3-Clause */

#include "boot.h"

#include <stdlib.h>

#include "error.h"

void *xep_boot_new(size_t bytes, xep_boot_t boot)
{
    xep_boot_t *made = calloc(1, bytes);
    if (made == NULL) (void)xep_fail(XEP_ERR_NO_MEMORY, "no memory for the bootstrap");
    else *made = boot;
    return made;
}
