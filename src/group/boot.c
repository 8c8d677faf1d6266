/* SPDX-License-Identifier: BSD-3-Clause */

#include "boot.h"

#include <stdlib.h>

#include "error.h"

void *xep_boot_new(size_t bytes, const xep_boot_ops_t *ops, uint32_t rank, uint32_t nranks, int32_t timeout_ms)
{
    xep_boot_t *boot = calloc(1, bytes);
    if (boot == NULL) (void)xep_fail(XEP_ERR_NO_MEMORY, "no memory for the bootstrap");
    else *boot = (xep_boot_t){.ops = ops, .rank = rank, .nranks = nranks, .timeout_ms = timeout_ms};
    return boot;
}

void xep_boot_free(xep_boot_t *boot)
{
    free(boot);
}

uint32_t xep_boot_knows_no_dead(xep_boot_t *boot)
{
    (void)boot;
    return UINT32_MAX;
}
