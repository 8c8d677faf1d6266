/* SPDX-License-Identifier: BSD-3-Clause */

/** Buffers in device memory that cannot be. */
#ifndef TEST_CUDA_REFUSE_H
#define TEST_CUDA_REFUSE_H

#include <xep/xep.h>

/** Where no device was chosen, and in a mode that there is not. */
void cuda_refuse_no_device(xep_group_t *group);

/** As the script has made the machine: "absent", there is no driver, or "apart", ranks do not map one another. */
int cuda_refuse(xep_group_t *group, const char *machine);

#endif
