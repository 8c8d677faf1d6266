/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * What a dispatch must bring where rows are by expert: local expert, then source rank, then source token, all
 * ascending; cast or as they were.
 */
#ifndef ORACLE_BY_EXPERT_H
#define ORACLE_BY_EXPERT_H

#include "oracle_check.h"

/** 0, or 1 and the first difference is noted. */
int oracle_check_by_expert(oracle_check_t *check);

#endif
