/* SPDX-License-Identifier: BSD-3-Clause */

#include "script_memory.h"

#include <stdlib.h>
#include <string.h>

#include "oracle_hash.h"

enum { MARGIN = 128 };

uint64_t script_memory_checksum(const script_memory_t *memory)
{
    return oracle_hash_row(memory->data, memory->bytes, 0);
}

char *script_memory_make_input(script_memory_t *memory, sim_rank_t *rank, uint64_t rows, size_t row, size_t align,
                               size_t *stride_p)
{
    size_t skew = sim_below(&rank->dice, 3) * align;
    *stride_p = row + sim_below(&rank->dice, 3) * align;
    memory->bytes = rows ? (rows - 1) * *stride_p + row : 0;
    memory->allocated = calloc(1, memory->bytes + skew + 1);
    memory->data = memory->allocated + skew;
    return rows ? memory->data : NULL;
}

void script_memory_make_output(script_memory_t *memory, sim_rank_t *rank, uint64_t rows, size_t row, size_t align,
                               size_t *stride_p)
{
    size_t skew = sim_chance(&rank->dice, 50) ? 0 : sim_below(&rank->dice, 3) * align;
    void *allocated;
    *stride_p = row + sim_below(&rank->dice, 3) * align;
    memory->bytes = 2 * MARGIN + skew + (rows ? (rows - 1) * *stride_p + row : 0);
    if (posix_memalign(&allocated, 64, memory->bytes) != 0) abort();
    memory->allocated = allocated;
    memory->data = memory->allocated + MARGIN + skew;
    memset(memory->allocated, SCRIPT_POISON, memory->bytes);
}

static int is_poison(const char *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)data[i] != SCRIPT_POISON) return 0;
    return 1;
}

int script_memory_has_margins(const script_memory_t *memory, size_t row, size_t stride, uint64_t rows)
{
    size_t before = (size_t)(memory->data - memory->allocated), used = rows ? (rows - 1) * stride + row : 0;
    int good = is_poison(memory->allocated, before) && is_poison(memory->data + used, memory->bytes - before - used);
    for (uint64_t r = 0; r + 1 < rows; r++) good &= is_poison(memory->data + r * stride + row, stride - row);
    return good;
}
