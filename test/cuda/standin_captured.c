/* SPDX-License-Identifier: BSD-3-Clause */

/* The nodes of captured operations whose rows are staged, in plain C: what xep/captured.h says that they do. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xep/captured.h>

#include "standin.h"

result_t cuPointerGetAttribute(void *value, int attribute, address_t address);

static void run_ask(const void *args)
{
    const xep_captured_t *c = args;
    const uint32_t number = __atomic_add_fetch(&c->words->number, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&c->board->record, c->record, __ATOMIC_RELAXED);
    __atomic_store_n(&c->board->asked, number, __ATOMIC_RELEASE);
    int stopped = 0;
    while ((int32_t)(__atomic_load_n(&c->board->answered, __ATOMIC_ACQUIRE) - number) < 0 && !stopped) {
        usleep(10);
        stopped = __atomic_load_n(c->stop, __ATOMIC_ACQUIRE) != 0 || standin_is_lost();
    }
    __atomic_store_n(&c->words->go, !stopped, __ATOMIC_RELAXED);
}

/* A kernel reaches memory of the device, and pinned memory: of other addresses the driver knows nothing. */
static void check_reached(const char *address)
{
    int kind;
    if (cuPointerGetAttribute(&kind, 2, (address_t)address) == DONE) return;
    fprintf(stderr, "stand-in: xep_cuda_copies: %p is memory that a kernel does not reach\n", (const void *)address);
    abort();
}

static void run_copies(const void *args)
{
    const xep_captured_t *c = args;
    const int go = __atomic_load_n(&c->words->go, __ATOMIC_RELAXED) != 0;
    const uint32_t count = go ? __atomic_load_n(&c->board->count, __ATOMIC_RELAXED) : 0;
    for (uint32_t i = 0; i < count; i++) {
        const xep_captured_copy_t *copy = &c->copies[i];
        const uint64_t last = copy->bytes - 1, rows = copy->rows - 1;
        check_reached(copy->to);
        check_reached(copy->to + rows * copy->to_stride + last);
        check_reached(copy->from);
        check_reached(copy->from + rows * copy->from_stride + last);
        for (uint64_t r = 0; r < copy->rows; r++)
            memcpy(copy->to + r * copy->to_stride, copy->from + r * copy->from_stride, copy->bytes);
    }
}

const standin_kernel_t standin_captured_kernels[] = {
    {"xep_cuda_ask", sizeof(xep_captured_t), run_ask},
    {"xep_cuda_copies", sizeof(xep_captured_t), run_copies},
};
const int standin_captured_count = sizeof standin_captured_kernels / sizeof standin_captured_kernels[0];
