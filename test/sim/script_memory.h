/* SPDX-License-Identifier: BSD-3-Clause */

/** The user's memory in a script: exactly as long as it must be; outputs are poisoned, with a margin on both sides. */
#ifndef SCRIPT_MEMORY_H
#define SCRIPT_MEMORY_H

#include "script.h"

enum { SCRIPT_POISON = 0xa5 };

typedef struct script_memory {
    char *data, *allocated;
    size_t bytes;
    uint64_t checksum;
} script_memory_t;

uint64_t script_memory_checksum(const script_memory_t *memory);

/** For rows a stride apart, not longer than the last row, not more aligned than it must be; NULL: there are no rows. */
char *script_memory_make_input(script_memory_t *memory, sim_rank_t *rank, uint64_t rows, size_t row, size_t align,
                               size_t *stride_p);

void script_memory_make_output(script_memory_t *memory, sim_rank_t *rank, uint64_t rows, size_t row, size_t align,
                               size_t *stride_p);

/** Whether margins of an output of rows a stride apart, and gaps between them, are as they were. */
int script_memory_has_margins(const script_memory_t *memory, size_t row, size_t stride, uint64_t rows);

#endif
