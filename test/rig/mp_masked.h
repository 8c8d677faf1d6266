/* SPDX-License-Identifier: BSD-3-Clause */

/** The expected results of operations without some ranks: selections of their experts do not count. */
#ifndef MP_MASKED_H
#define MP_MASKED_H

#include "oracle.h"

/** Ranks that are out now, by the bits of their numbers. */
extern uint32_t mp_masked_out;

/** For oracle_shape_t.source. */
extern const oracle_source_t mp_masked;

#endif
