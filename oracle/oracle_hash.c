/* SPDX-License-Identifier: BSD-3-Clause */

/* For runs that are compared with one another (xep_perf --pressure): it takes one pass over what arrived. */
#include "oracle_hash.h"

#include <string.h>

#include "oracle_check.h"
#include "oracle_number.h"
#include "oracle_random.h"

/* In words of eight bytes, the last one filled up with zeros: the key has the length, which tells such rows apart. */
uint64_t oracle_hash_row(const void *row, size_t bytes, uint64_t key)
{
    uint64_t hash = oracle_mix(key + bytes), word;
    size_t at = 0;

    for (; at + sizeof word <= bytes; at += sizeof word) {
        memcpy(&word, (const char *)row + at, sizeof word);
        hash = oracle_mix(hash ^ word);
    }
    word = 0;
    memcpy(&word, (const char *)row + at, bytes - at);
    return oracle_mix(hash ^ word);
}

/* The row's number is part of its key: within an expert its place is promised. */
static uint64_t hash_by_expert(const xep_recv_t *recv, uint32_t nranks, size_t row_bytes)
{
    uint64_t sum = 0;

    for (uint32_t pair = 0; pair < recv->local_experts * nranks; pair++)
        for (uint64_t row = recv->pair_begin[pair], end = row + recv->pair_count[pair]; row < end; row++)
            sum += oracle_hash_row(oracle_row_at(recv, row), row_bytes,
                                   oracle_stream(row, ORACLE_KIND_ROW, pair, (uint64_t)recv->src_token[row]));
    return sum;
}

/* By rank a row is known by who sent it, so its key is that. */
uint64_t oracle_hash_recv(const xep_recv_t *recv, uint32_t nranks)
{
    const size_t row_bytes = recv->hidden * oracle_element_bytes(recv->dtype);
    uint64_t sum = 0;

    if (recv->arrangement != XEP_ROWS_BY_RANK) return hash_by_expert(recv, nranks, row_bytes);
    for (uint32_t src = 0; src < nranks; src++)
        for (uint64_t row = recv->src_begin[src]; row < recv->src_begin[src + 1]; row++)
            sum += oracle_hash_row(oracle_row_at(recv, row), row_bytes,
                                   oracle_stream(0, ORACLE_KIND_ROW, src, (uint64_t)recv->src_token[row]));
    return sum;
}

uint64_t oracle_hash_rows(const void *rows, size_t stride, size_t row_bytes, uint64_t count)
{
    uint64_t sum = 0;

    for (uint64_t row = 0; row < count; row++)
        sum += oracle_hash_row((const char *)rows + row * stride, row_bytes, row);
    return sum;
}
