/* SPDX-License-Identifier: BSD-3-Clause */

/** Hashes of rows: a sum over rows, so that their order does not count, but their contents and owners do. */
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
