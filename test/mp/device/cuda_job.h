/* SPDX-License-Identifier: BSD-3-Clause */

/** A job (mp_job.h) with its arrays in device memory, too: what is sent from there, and what comes back to compare. */
#ifndef TEST_CUDA_JOB_H
#define TEST_CUDA_JOB_H

#include "mp_job.h"

/** A field of a mp_case_t. */
#define MP_CUDA .memory = XEP_MEMORY_CUDA

typedef struct cuda_job {
    mp_job_t host;
    void *stream;
    int staged;       /* rows go through the host */
    int counts_there; /* dispatches are with XEP_DISPATCH_COUNTS_THERE */
    void *x, *idx, *weights, *scales, *bias[2], *y, *out, *out_weights;
    xep_payload_t payloads[XEP_PAYLOADS_MOST];
} cuda_job_t;

/** Whether rows in device memory go through the host in this group: not all ranks map one another. */
int cuda_job_stages(xep_group_t *group);

void cuda_job_open(cuda_job_t *job, const mp_case_t *c, uint64_t seed, xep_group_t *group, void *stream);
void cuda_job_close(cuda_job_t *job);

/** Other rows for the same routing. */
void cuda_job_payload(cuda_job_t *job, uint64_t payload);

/** Arguments with arrays of the device. cached: NULL, or the handle whose routing is used again. */
xep_dispatch_args_t cuda_job_dispatch(cuda_job_t *job, xep_handle_t *cached);

/** Waits for the stream, and compares what came. */
void cuda_job_check_recv(cuda_job_t *job, const xep_handle_t *handle);

/** Expert outputs into the handle's input, or into memory of the device, poison into the sums; and compares these. */
xep_combine_args_t cuda_job_outputs(cuda_job_t *job, xep_handle_t *handle);
void cuda_job_check_sums(cuda_job_t *job, const xep_combine_args_t *a);

/** Outputs, a combine, and compares the sums. */
void cuda_job_combine(cuda_job_t *job, xep_handle_t *handle);

/** Payloads beside a cast are refused, and a combine that casts is one that does not. */
void cuda_job_refuse_formats(cuda_job_t *job, xep_handle_t *handle);

/** A combine that is to say what is missing says that nothing is; staged it is refused. */
void cuda_job_nothing_missing(cuda_job_t *job, xep_handle_t *handle);

/** So is all that xep_mode_query() says the mode does not have; not staged. */
void cuda_job_refuse_lacks(cuda_job_t *job, xep_handle_t *handle);

/** A blocking dispatch of what is in the input. */
xep_handle_t *cuda_job_send(cuda_job_t *job);

/** Check, combine, check, release. */
void cuda_job_end(cuda_job_t *job, xep_handle_t *handle);

/** Both. */
void cuda_job_round(cuda_job_t *job);

/**
 * Rank 0 selects an expert that does not exist; the job has 8 experts and two selections a token. status is
 * XEP_ERR_INVALID if the call itself says so (staged it always does), XEP_ERR_PROTOCOL if only the device sees it: then
 * a later dispatch says so, and the buffer is reset. A plain round follows.
 */
void cuda_job_wrong_index(cuda_job_t *job, xep_status_t status);

#endif
