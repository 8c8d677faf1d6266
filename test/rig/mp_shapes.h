/* SPDX-License-Identifier: BSD-3-Clause */

/** Shapes that every way of moving rows is tried on: in each mode, flat and by nodes, in pieces, in place, on devices. */
#ifndef TEST_MP_SHAPES_H
#define TEST_MP_SHAPES_H

#include "mp_job.h"

enum { MP_SHAPES = 14 };

/** One of them, in a mode. */
mp_case_t mp_shape(uint32_t number, const char *mode);

#endif
