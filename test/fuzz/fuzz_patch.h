/* SPDX-License-Identifier: BSD-3-Clause */

/** Structs of xep.h made wrong: one field of good arguments gets another value, or the struct another size. */
#ifndef FUZZ_PATCH_H
#define FUZZ_PATCH_H

#include <stddef.h>
#include <stdint.h>

enum { FUZZ_STRIDE_MOST = 160 };

/** What a field may become, so that a call that is taken still reads and writes the caller's memory alone. */
typedef enum {
    FUZZ_NUMBER,  /* anything */
    FUZZ_POINTER, /* NULL, or one byte further */
    FUZZ_STRIDE,  /* 0 to FUZZ_STRIDE_MOST */
    FUZZ_FEW,     /* 0 to 3, or too many: what costs threads */
    FUZZ_TIMEOUT, /* 1 to 64 ms: no deadline would be a hang */
    FUZZ_SIZE     /* that of the struct */
} fuzz_kind_t;

typedef struct fuzz_field {
    size_t offset, bytes;
    fuzz_kind_t kind;
} fuzz_field_t;

#define FUZZ_FIELD(_struct, _field, _kind)                                       \
    {                                                                            \
        offsetof(_struct, _field), sizeof(((const _struct *)0)->_field), (_kind) \
    }

typedef struct fuzz_patch {
    uint32_t field; /* of a table, modulo its length */
    uint64_t value;
} fuzz_patch_t;

/** fuzz_patched() for a struct and the table of its fields. */
#define FUZZ_PATCHED(_good, _fields, _patch) \
    fuzz_patched(&(_good), sizeof(_good), (_fields), sizeof(_fields) / sizeof(_fields)[0], (_patch))

/**
 * A copy of a struct in memory as long as any size that the library takes, all 0 behind it, with the patch, if it is
 * not NULL. It is one for all: good until the next call.
 */
void *fuzz_patched(const void *good, size_t bytes, const fuzz_field_t *fields, size_t nfields,
                   const fuzz_patch_t *patch);

#endif
