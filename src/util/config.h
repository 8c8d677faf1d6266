/* SPDX-License-Identifier: BSD-3-Clause */

/** The configuration: environment variables XEP_*, parsed into one struct. */
#ifndef XEP_UTIL_CONFIG_H
#define XEP_UTIL_CONFIG_H

#include <stdint.h>

#include <xep/plugin.h>

enum { XEP_BOOT_AUTO, XEP_BOOT_CALLBACK, XEP_BOOT_PMIX, XEP_BOOT_SINGLE };
enum { XEP_MAP_AUTO, XEP_MAP_NEVER };
enum { XEP_LIVENESS_PROCESS, XEP_LIVENESS_HEARTBEAT };
enum { XEP_PUT_AUTO, XEP_PUT_RMA, XEP_PUT_AM };
enum { XEP_ROOM_OF_HOST, XEP_ROOM_OF_RANK };
enum { XEP_PROGRESS_CALL, XEP_PROGRESS_THREAD };
enum { XEP_SIMD_AUTO = XEP_SIMD_AVX512VBMI + 1 }; /* more than any processor has, which gives what it has */

typedef const char *xep_config_text_t; /* of the environment: valid until that changes */
typedef xep_config_text_t xep_config_path_t;
typedef xep_config_text_t xep_config_folders_t;
typedef uint64_t xep_config_bytes_t;  /* UINT64_MAX: inf */
typedef uint64_t xep_config_chosen_t; /* bytes, or XEP_CONFIG_AUTO: the library chooses */
#define XEP_CONFIG_AUTO (UINT64_MAX - 1)
typedef uint32_t xep_config_count_t;
typedef uint32_t xep_config_positive_t;
typedef int32_t xep_config_millis_t; /* < 0: inf */

typedef struct xep_config {
#define VALUE(_field, _name, _type, _default, _help) xep_config_##_type##_t _field;
#define CHOICE(_field, _name, _default, _help)       int _field;
#include "config_defs.h"
#undef CHOICE
#undef VALUE
} xep_config_t;

/** XEP_STREAMING; if the library chooses, the least it takes, however small the caches are. */
static inline uint64_t xep_config_stream(const xep_config_t *config)
{
    return config->stream == XEP_CONFIG_AUTO ? UINT64_C(768) << 10 : config->stream;
}

/**
 * Reads the environment. XEP_ERR_INVALID with the variable, its value and what is allowed as reason when a
 * value cannot be parsed. Warns once a process about XEP_* variables that do not exist.
 */
xep_status_t xep_config_read(xep_config_t *config);

#endif
