/* SPDX-License-Identifier: BSD-3-Clause */

#include "fuzz_patch.h"

#include <string.h>

enum { MOST_STRUCT = 65536 + 8 };

static uint64_t change(const fuzz_field_t *field, uint64_t old, uint64_t value)
{
    switch (field->kind) {
    case FUZZ_POINTER: return value % 2 == 0 ? 0 : old + 1;
    case FUZZ_STRIDE: return value % (FUZZ_STRIDE_MOST + 1);
    case FUZZ_FEW: return value < 4 || value > 1024 ? value : 2;
    case FUZZ_TIMEOUT: return 1 + value % 64;
    default: return value;
    }
}

void *fuzz_patched(const void *good, size_t bytes, const fuzz_field_t *fields, size_t nfields,
                   const fuzz_patch_t *patch)
{
    static _Alignas(64) unsigned char area[MOST_STRUCT];
    uint64_t old = 0;
    memset(area, 0, sizeof area);
    memcpy(area, good, bytes);
    if (patch == NULL) return area;
    const fuzz_field_t *field = &fields[patch->field % nfields];
    memcpy(&old, area + field->offset, field->bytes);
    uint64_t now = change(field, old, patch->value);
    memcpy(area + field->offset, &now, field->bytes);
    return area;
}
