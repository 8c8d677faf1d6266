/* SPDX-License-Identifier: BSD-3-Clause */

/** Buffers in device memory that cannot be, and streams without them. */
#ifndef TEST_CUDA_REFUSE_H
#define TEST_CUDA_REFUSE_H

#include <xep/xep.h>

/** Where no device was chosen, in a mode that there is not, and without all ranks. */
void cuda_refuse_no_device(xep_group_t *group);

/** A stream, of whatever device, for a buffer in host memory. */
void cuda_refuse_stream(xep_group_t *group, void *stream);

/** As the script has made the machine: "absent", there is no driver, or "apart", ranks do not map one another. */
int cuda_refuse(xep_group_t *group, const char *machine);

#endif
