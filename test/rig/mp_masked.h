/* SPDX-License-Identifier: BSD-3-Clause */

/** The truth of operations that some ranks are out of: selections of their experts count for nothing. */
#ifndef MP_MASKED_H
#define MP_MASKED_H

#include "oracle.h"

/** Ranks that are out now, by the bits of their numbers. */
extern uint32_t mp_masked_out;

/** For oracle_shape_t.source. */
extern const oracle_source_t mp_masked;

#endif
