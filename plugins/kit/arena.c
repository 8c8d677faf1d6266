/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The list of arrays is walked twice, first to measure, then to place: a size that is written down once cannot differ
 * from itself.
 */
#include "arena.h"

#include <stdlib.h>
#include <string.h>

enum { LINE = 64 };

xep_status_t xep_arena_open(xep_kit_t *kit, xep_arena_fn carve, int lazily)
{
    xep_carve_t arena = {0};
    char *memory = NULL;
    carve(kit, &arena);
    if (!arena.overflow) memory = calloc(1, arena.end + LINE);
    if (memory == NULL)
        return kit->env->fail(kit->env, NULL, XEP_ERR_NO_MEMORY, "no %llu bytes for the lists of %u slots",
                              (unsigned long long)arena.end, kit->shape->slots);
    if (!lazily) memset(memory, 0, arena.end);
    arena = (xep_carve_t){.base = (char *)(((uintptr_t)memory + LINE - 1) & ~(uintptr_t)(LINE - 1))};
    carve(kit, &arena);
    kit->arena = memory;
    return XEP_OK;
}
