/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Hashes of rows: sums over the rows, by what is in them and whose they are. Where an arrangement promises a place (by
 * expert), the place counts, too.
 */
#ifndef ORACLE_HASH_H
#define ORACLE_HASH_H

#include <stddef.h>
#include <stdint.h>

#include <xep/xep.h>

uint64_t oracle_hash_row(const void *row, size_t bytes, uint64_t key);
uint64_t oracle_hash_rows(const void *rows, size_t stride, size_t row_bytes, uint64_t count);

/** All rows that a dispatch brought. */
uint64_t oracle_hash_recv(const xep_recv_t *recv, uint32_t nranks);

#endif
