/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 2, limit: 120, again: 2 */

/*
 * A rank that was away goes on with its dispatch when the others have given it up, ended the buffer and use the memory
 * for something else. What UCX then puts into the old heap, by address, hurts nobody: those addresses stay taken, so no
 * later memory of the process is there, and no later heap; and they can be written, as over TCP the process that went
 * on does it itself; UCX from 1.16 on does it by CMA.
 */

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "mp_job.h"
#include "mp_rig.h"

enum { LOST_MS = MP_VAIN_MS, OWN = 0x5a, HEAPS = 6, BACK = 1, DONE = 2 };

static const mp_case_t large = {.name = "large", MP_SHAPE(8, 2, 1024, 256), .weights = 1};

typedef struct range {
    char *base;
    size_t bytes;
} range_t;

static int overlap(range_t a, range_t b)
{
    return a.base < b.base + b.bytes && b.base < a.base + a.bytes;
}

static range_t heap_of(const mp_job_t *job)
{
    range_t heap;
    void *base;
    MP_OK(xep_buffer_memory(job->buffer, &base, &heap.bytes));
    heap.base = base;
    return heap;
}

static xep_status_t dispatch_for(mp_job_t *job, int32_t timeout_ms)
{
    xep_handle_t *handle = NULL;
    xep_dispatch_args_t args = mp_job_dispatch(job);
    args.timeout_ms = timeout_ms;
    xep_status_t status = xep_dispatch(job->buffer, &args, &handle, NULL);
    xep_handle_release(handle);
    return status;
}

/* ---- the rank that goes on ---- */

/* New heaps, of many sizes, are elsewhere, and what comes late is not in them either. */
static void go_on_alone(range_t old, const atomic_int *turn)
{
    xep_group_t *alone = mp_group_alone();
    for (int i = 0; i < HEAPS || atomic_load(turn) < DONE; i++) {
        xep_buffer_params_t small = mp_small_params();
        xep_buffer_t *buffer;
        mp_job_t job = {0};
        small.tokens = (uint64_t)8 << i % HEAPS;
        MP_OK(xep_buffer_create(alone, &small, &buffer));
        job.buffer = buffer;
        MP_CHECK(!overlap(heap_of(&job), old));
        xep_buffer_destroy(buffer);
        mp_sleep_us(20 * 1000);
    }
    xep_group_destroy(alone);
}

/* Where the heap was, if the kernel lets it have that. */
static range_t use_again(range_t old)
{
    range_t own = {.bytes = old.bytes};
    own.base = mmap(old.base, old.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MP_CHECK(own.base != MAP_FAILED);
    memset(own.base, OWN, own.bytes);
    return own;
}

static void give_up(mp_job_t *job, atomic_int *turn)
{
    range_t old = heap_of(job);
    MP_FAILS(XEP_ERR_TIMEOUT, dispatch_for(job, LOST_MS));
    mp_job_close(job);
    range_t own = use_again(old);
    atomic_store(turn, BACK);
    go_on_alone(old, turn);
    for (size_t i = 0; i < own.bytes; i++) MP_CHECK(own.base[i] == OWN);
    MP_CHECK(!overlap(own, old));
}

/* ---- the rank that was away ---- */

static void come_back(mp_job_t *job, atomic_int *turn)
{
    mp_await(turn, BACK);
    (void)dispatch_for(job, LOST_MS); /* whatever it is told */
    atomic_store(turn, DONE);
    mp_job_close(job);
}

int main(void)
{
    mp_job_t job;
    setenv("XEP_MAP", "never", 1);
    setenv("XEP_PUT", "rma", 0);
    setenv("XEP_PROGRESS", "thread", 1); /* over TCP the target stores what is put, when it makes progress */
    xep_group_t *group = mp_group();
    atomic_int *turn = mp_counter(group);
    mp_job_begin(&job, &large, 3, group);
    mp_job_round(&job);
    if (mp_rank() == 0) give_up(&job, turn);
    else come_back(&job, turn);
    mp_await(turn, DONE);
    return mp_end(group);
}
