/* SPDX-License-Identifier: BSD-3-Clause */

/** Layouts that are counted on the device. */
#ifndef TEST_CUDA_LAYOUTS_H
#define TEST_CUDA_LAYOUTS_H

#include <xep/xep.h>

/** Layouts of many shapes by a buffer of a mode, compared with the oracle; and what is refused. Collective. */
void cuda_layouts(xep_group_t *group, const char *mode, void *stream);

#endif
