/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * A routing read from a file: lines "RANK TOKEN E0 E1 ..", at most K experts, -1 for none, "#" starts a comment. Takes
 * memory for the lines there are, whatever numbers they name.
 */
#ifndef ORACLE_ROUTE_FILE_H
#define ORACLE_ROUTE_FILE_H

#include <stddef.h>
#include <stdint.h>

typedef struct oracle_route_file oracle_route_file_t;

/** What the numbers of a line must be below. */
typedef struct oracle_route_limits {
    uint32_t nranks;
    uint32_t experts;
    uint32_t topk;
    uint64_t tokens; /* 0: any number */
} oracle_route_limits_t;

/** tokens_of [nranks] is set to the highest token of each rank, plus 1. 0, or -1 and a sentence in why. */
int oracle_route_file_read(const char *path, const oracle_route_limits_t *limits, uint64_t *tokens_of,
                           oracle_route_file_t **file_p, char *why, size_t why_bytes);
void oracle_route_file_free(oracle_route_file_t *file);

/** Selections [K] of a token; all -1 where it has no line. */
void oracle_route_file_look(const oracle_route_file_t *file, uint32_t rank, uint64_t token, int32_t *idx);

#endif
