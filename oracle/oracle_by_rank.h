/* SPDX-License-Identifier: BSD-3-Clause */

/** What a dispatch must bring where rows are by rank: source rank, then source token, both ascending. */
#ifndef ORACLE_BY_RANK_H
#define ORACLE_BY_RANK_H

#include "oracle_check.h"

/** 0, or 1 and the first difference is noted. */
int oracle_check_by_rank(oracle_check_t *check);

#endif
