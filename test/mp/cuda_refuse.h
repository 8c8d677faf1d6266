/* SPDX-License-Identifier: BSD-3-Clause */

/** Buffers in device memory that cannot be, and streams without them. */
#ifndef TEST_CUDA_REFUSE_H
#define TEST_CUDA_REFUSE_H

#include "cuda_job.h"

/** Where no device was chosen, in a mode that there is not, and without all ranks. */
void cuda_refuse_no_device(xep_group_t *group);

/** Host memory, and that of another device, for every array that a kernel touches. With recv_rows_p. */
void cuda_refuse_memory(cuda_job_t *job);

/** Streams of another device, and of another context of this one. */
void cuda_refuse_streams(cuda_job_t *job);

/** A device without memory enough, of which another rank's cannot be reached, and whose driver is too old. */
void cuda_refuse_machine(xep_group_t *group);

/** A stream, of whatever device, and arrays of a device, for a buffer in host memory. */
void cuda_refuse_stream(xep_group_t *group, void *stream);

/** By normal, of all ranks: of 8 experts and two selections of a token, rank 0 selects one that is none. */
void cuda_refuse_index(cuda_job_t *job);

/** As the script has made the machine: absent, there is no driver; old, one that lacks functions; none, no device. */
int cuda_refuse(xep_group_t *group, const char *driver);

#endif
