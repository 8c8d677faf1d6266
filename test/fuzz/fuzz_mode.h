/* SPDX-License-Identifier: BSD-3-Clause */

/** A mode whose table and answers the fuzz target writes: xep_fuzzed.so, made of fuzz_mode.c. */
#ifndef FUZZ_MODE_H
#define FUZZ_MODE_H

#include <xep/plugin.h>

/** What heap_size() says; the object exports one as fuzz_answer, beside xep_plugin. */
typedef struct fuzz_answer {
    xep_status_t status;
    xep_region_t regions[XEP_REGIONS];
    uint64_t recv_rows;
} fuzz_answer_t;

#endif
