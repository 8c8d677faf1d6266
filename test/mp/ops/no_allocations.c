/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 2 3, brief: 3 */

/*
 * Steady state on mapped peers allocates nothing: every allocation function is counted here, by
 * definitions that come before libc's. no_system_calls.sh looks at the system calls between the two getpgid(-77).
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mp_job.h"
#include "mp_rig.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

int main(void)
{
    return mp_skip("the sanitizer has allocation functions of its own");
}

#else

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

static atomic_int counting;
static atomic_long allocations;

static void count(void)
{
    if (atomic_load(&counting)) atomic_fetch_add(&allocations, 1);
}

void *malloc(size_t bytes)
{
    count();
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    count();
    return __libc_calloc(n, bytes);
}

void *realloc(void *old, size_t bytes)
{
    count();
    return __libc_realloc(old, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    count();
    return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **memory_p, size_t alignment, size_t bytes)
{
    count();
    *memory_p = __libc_memalign(alignment, bytes);
    return *memory_p == NULL ? ENOMEM : 0;
}

static void rounds(mp_job_t *job, int n)
{
    xep_handle_t *handle;
    xep_request_t *req;
    size_t stride;
    for (int i = 0; i < n; i++) {
        xep_dispatch_args_t d = mp_job_dispatch(job);
        MP_OK(xep_dispatch(job->buffer, &d, &handle, &req));
        MP_OK(xep_request_wait(req));
        xep_request_free(req);
        xep_combine_args_t c = XEP_COMBINE_ARGS_INIT;
        MP_CHECK(mp_input(handle, &stride) != NULL);
        c.x = i % 2 == 0 ? NULL : mp_recv(handle)->x;
        c.out = job->out;
        MP_OK(xep_combine(handle, &c, NULL));
        xep_handle_release(handle);
    }
}

int main(int argc, char **argv)
{
    static const mp_case_t c = {.name = "steady", MP_SHAPE(16, 4, 1024, 64), .weights = 1};
    xep_group_t *group = mp_group();
    mp_job_t job;
    mp_job_begin(&job, &c, 1, group);
    const xep_buffer_info_t info = mp_buffer_info(job.buffer);
    if (info.mapped_peers != mp_nranks()) return mp_skip("not all peers are mapped: UCX allocates");
    rounds(&job, 6);
    MP_OK(xep_group_barrier(group));
    atomic_store(&counting, 1);
    getpgid(-77);
    rounds(&job, argc > 1 ? 200 : 50);
    getpgid(-77);
    atomic_store(&counting, 0);
    MP_CHECK(atomic_load(&allocations) == 0);
    MP_OK(xep_group_barrier(group));
    mp_job_close(&job);
    xep_group_destroy(group);
    (void)argv;
    return 0;
}

#endif
