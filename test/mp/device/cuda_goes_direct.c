/* SPDX-License-Identifier: BSD-3-Clause */

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_job.h"
#include "cuda_parts.h"
#include "cuda_rig.h"
#include "mp_rig.h"

enum { HIDDEN = 64, TOKENS = 16 };

static mp_case_t small_case(const char *name)
{
    return (mp_case_t){.name = name, .mode = "normal", MP_SHAPE(8, 2, HIDDEN, TOKENS), MP_CUDA};
}

static void counts_the_twin(void)
{
    xep_buffer_params_t p = mp_small_params();
    xep_buffer_size_t staged = XEP_BUFFER_SIZE_INIT, direct = XEP_BUFFER_SIZE_INIT;
    p.memory = XEP_MEMORY_CUDA;
    unsetenv("XEP_DIRECT");
    MP_OK(xep_buffer_size(&p, mp_nranks(), &staged));
    setenv("XEP_DIRECT", "yes", 1);
    MP_OK(xep_buffer_size(&p, mp_nranks(), &direct));
    MP_CHECK(direct.bytes == staged.bytes && direct.recv_rows == staged.recv_rows);
    MP_CHECK(direct.device_bytes >= staged.device_bytes + 2 * direct.recv_rows * p.hidden * sizeof(uint16_t));
    p.dtype = XEP_FP32, p.combine_dtype = XEP_BF16; /* a row would not fit where its sum returns: staged */
    MP_OK(xep_buffer_size(&p, mp_nranks(), &direct));
    unsetenv("XEP_DIRECT");
    MP_OK(xep_buffer_size(&p, mp_nranks(), &staged));
    setenv("XEP_DIRECT", "yes", 1);
    MP_CHECK(direct.device_bytes == staged.device_bytes);
}

/* Copying these to where the slot's input begins would write over what is still to be read. */
static void refuses_shifted_outputs(xep_group_t *group, void *stream)
{
    const mp_case_t c = small_case("shifted outputs");
    cuda_job_t job;
    size_t stride;
    cuda_job_open(&job, &c, 5, group, stream);
    xep_handle_t *handle = cuda_job_send(&job);
    xep_combine_args_t b = cuda_job_outputs(&job, handle);
    MP_CHECK(mp_recv(handle)->rows > 1);
    b.x = (char *)mp_input(handle, &stride) + stride;
    MP_SAYS(XEP_ERR_INVALID, "bytes behind what xep_handle_combine_input() returned", xep_combine(handle, &b, NULL));
    cuda_job_end(&job, handle);
    cuda_job_close(&job);
}

/*
 * The driver says no more how far the kernel has come that sums into the caller's memory, which it still does: what the
 * caller enqueues after the error comes behind it.
 */
static void sums_after_an_error(xep_group_t *group, void *stream)
{
    static uint16_t mine[TOKENS * HIDDEN], left[TOKENS * HIDDEN];
    const mp_case_t c = small_case("sums after an error");
    void *symbol = dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), "standin_fail");
    int (*fail)(const char *, int);
    xep_request_t *req;
    cuda_job_t job;
    if (symbol == NULL) return; /* a real driver */
    memcpy(&fail, &symbol, sizeof fail);
    memset(mine, MP_POISON, sizeof mine);
    cuda_job_open(&job, &c, 5, group, stream);
    xep_handle_t *handle = cuda_job_send(&job);
    const xep_combine_args_t b = cuda_job_outputs(&job, handle);
    MP_CHECK(b.out_stride == HIDDEN * sizeof(uint16_t));
    cuda_rig_wait(stream);
    setenv("STANDIN_SLOW_SUMS", "50000", 1);
    MP_OK(xep_combine(handle, &b, &req));
    fail("cuEventQuery", 1);
    MP_FAILS(XEP_ERR_TRANSPORT, xep_request_wait(req));
    fail(NULL, 0);
    xep_request_free(req);
    cuda_rig_put(job.out, mine, sizeof mine, stream);
    MP_OK(xep_buffer_reset(job.host.buffer)); /* after it nothing of the buffer's is under way */
    unsetenv("STANDIN_SLOW_SUMS");
    cuda_rig_get(left, job.out, sizeof left, stream);
    MP_CHECK(memcmp(left, mine, sizeof left) == 0);
    cuda_job_round(&job);
    cuda_job_close(&job);
}

void cuda_goes_direct(xep_group_t *group, void *stream)
{
    const char *direct = getenv("XEP_DIRECT");
    if (direct == NULL || strcmp(direct, "yes") != 0 || !cuda_job_stages(group)) return;
    counts_the_twin();
    refuses_shifted_outputs(group, stream);
    sums_after_an_error(group, stream);
}
