/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Owner maps by a text:
 *   block        blocks in rank order, the first experts % nranks ranks with one expert more than the others
 *   cyclic       expert e on rank e % nranks
 *   random:SEED  each expert on any rank
 *   split:M      none on the first M ranks, blocks on the others
 *   greedy       experts by falling load, each to the rank that has least load so far
 *   PATH         a file of as many ranks as there are experts, between spaces or lines
 */
#ifndef ORACLE_OWNERS_H
#define ORACLE_OWNERS_H

#include <stddef.h>
#include <stdint.h>

/** Makes a map [experts], which free() ends; or -1 and a sentence in why. load: [experts] selections of each. */
int oracle_owners_make(const char *how, uint32_t nranks, uint32_t experts, const uint64_t *load, uint32_t **owners_p,
                       char *why, size_t why_bytes);

#endif
