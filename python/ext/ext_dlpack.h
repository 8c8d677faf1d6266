/* SPDX-License-Identifier: BSD-3-Clause */

/** DLPack's C exchange interface, as its specification has it (dmlc.github.io/dlpack, version 1). */
#ifndef EXT_DLPACK_H
#define EXT_DLPACK_H

#include <stdint.h>

enum { DL_CPU = 1, DL_CUDA = 2, DL_MAJOR = 1 };
enum {
    DL_INT = 0,
    DL_UINT = 1,
    DL_FLOAT = 2,
    DL_BFLOAT = 4,
    DL_FLOAT8_E4M3FN = 10,
    DL_FLOAT8_E5M2 = 12,
    DL_FLOAT4_E2M1FN = 17
};

typedef struct dl_version {
    uint32_t major, minor;
} dl_version_t;

typedef struct dl_type {
    uint8_t code, bits;
    uint16_t lanes;
} dl_type_t;

typedef struct dl_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    dl_type_t type;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL: dense */
    uint64_t byte_offset;
} dl_tensor_t;

/** What a capsule "dltensor" has: a tensor before there were versions. */
typedef struct dl_unversioned {
    dl_tensor_t tensor;
    void *context;
    void (*deleter)(struct dl_unversioned *self);
} dl_unversioned_t;

typedef struct dl_managed {
    dl_version_t version;
    void *context;
    void (*deleter)(struct dl_managed *self);
    uint64_t flags;
    dl_tensor_t tensor;
} dl_managed_t;

typedef struct dl_exchange {
    dl_version_t version;
    struct dl_exchange *previous;
    int (*allocate)(void);
    int (*export_managed)(void);
    int (*import_managed)(dl_managed_t *tensor, void **object_p);
    int (*look)(void *object, dl_tensor_t *tensor_p);
    int (*current_stream)(int device_type, int32_t device_id, void **stream_p);
} dl_exchange_t;

#endif
