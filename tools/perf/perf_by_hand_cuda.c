/* SPDX-License-Identifier: BSD-3-Clause */

#include "perf_by_hand.h"

#include <stdlib.h>
#include <string.h>

#include "oracle_alloc.h"
#include "perf_cuda.h"
#include "perf_say.h"

enum { NON_BLOCKING = 1, PEER_ACCESS = 1, THREADS = 1024, BLOCKS = 128 /* of all peers: a device has some more */ };

/** What the kernel copies: multiples of 16 bytes. */
typedef struct copy {
    uint64_t to, from, bytes;
} copy_t;

/* As text, which drivers compile: each thread has four words of 16 bytes under way. */
static const char kernel_text[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry perf_copy(.param .align 8 .b8 copy[24])\n"
    "{\n"
    ".reg .pred %p<4>;\n.reg .b32 %r<24>;\n.reg .b64 %d<20>;\n"
    "ld.param.u64 %d0, [copy];\nld.param.u64 %d1, [copy+8];\nld.param.u64 %d2, [copy+16];\n"
    "mov.u32 %r0, %ctaid.x;\nmov.u32 %r1, %ntid.x;\nmov.u32 %r2, %tid.x;\nmov.u32 %r3, %nctaid.x;\n"
    "mad.lo.u32 %r0, %r0, %r1, %r2;\nmul.lo.u32 %r3, %r3, %r1;\n"
    "mul.wide.u32 %d3, %r0, 16;\nmul.wide.u32 %d4, %r3, 16;\n" /* where; how far to the next */
    "more:\n"
    "setp.ge.u64 %p0, %d3, %d2;\n@%p0 ret;\n"
    "add.u64 %d5, %d3, %d4;\nadd.u64 %d6, %d5, %d4;\nadd.u64 %d7, %d6, %d4;\n"
    "setp.lt.u64 %p1, %d5, %d2;\nsetp.lt.u64 %p2, %d6, %d2;\nsetp.lt.u64 %p3, %d7, %d2;\n"
    "add.u64 %d8, %d1, %d3;\nadd.u64 %d9, %d1, %d5;\nadd.u64 %d10, %d1, %d6;\nadd.u64 %d11, %d1, %d7;\n"
    "ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%d8];\n"
    "@%p1 ld.global.v4.u32 {%r8, %r9, %r10, %r11}, [%d9];\n"
    "@%p2 ld.global.v4.u32 {%r12, %r13, %r14, %r15}, [%d10];\n"
    "@%p3 ld.global.v4.u32 {%r16, %r17, %r18, %r19}, [%d11];\n"
    "add.u64 %d12, %d0, %d3;\nadd.u64 %d13, %d0, %d5;\nadd.u64 %d14, %d0, %d6;\nadd.u64 %d15, %d0, %d7;\n"
    "st.global.v4.u32 [%d12], {%r4, %r5, %r6, %r7};\n"
    "@%p1 st.global.v4.u32 [%d13], {%r8, %r9, %r10, %r11};\n"
    "@%p2 st.global.v4.u32 [%d14], {%r12, %r13, %r14, %r15};\n"
    "@%p3 st.global.v4.u32 [%d15], {%r16, %r17, %r18, %r19};\n"
    "add.u64 %d3, %d7, %d4;\n"
    "bra more;\n"
    "}\n";

struct perf_cuda_limit {
    const perf_t *perf;
    void *module, *kernel;
    void **streams;   /* [R] one to each peer */
    uintptr_t here;   /* rows that this rank sends, and gets back */
    uintptr_t *there; /* [R] rows of each rank */
    uint64_t *pairs;  /* [PERF_OPS][R][R] rows from rank to rank; of a combine in the direction of its dispatch */
};

/* Bytes of a row there: as it is received, or as it is combined. */
static size_t row_of(const perf_t *perf, perf_op_t op)
{
    return perf_line_up(op == PERF_DISPATCH ? perf->placed_bytes + perf->placed_scales : perf->sum_bytes);
}

static uint64_t *pair_of(const perf_cuda_limit_t *limit, perf_op_t op, uint32_t from, uint32_t to)
{
    const uint32_t nranks = limit->perf->info.nranks;

    return &limit->pairs[((size_t)op * nranks + from) * nranks + to];
}

/*
 * A dispatch needs each row once on each rank that has one of its experts; so does a combine by rank, or of sums at
 * owners. By expert a combine needs the output of every selection.
 */
static void count_pairs(perf_cuda_limit_t *limit, const perf_by_hand_t *hand)
{
    const perf_t *perf = limit->perf;
    const uint32_t nranks = perf->info.nranks;
    uint64_t *own = oracle_alloc(nranks * sizeof *own);

    limit->pairs = oracle_alloc((size_t)PERF_OPS * nranks * nranks * sizeof *limit->pairs);
    for (uint32_t from = 0; from < nranks; from++)
        for (uint32_t to = 0; to < nranks; to++)
            *pair_of(limit, PERF_DISPATCH, from, to) = *pair_of(limit, PERF_COMBINE, from, to) =
                perf->rank_rows[(size_t)from * nranks + to];
    if (perf->options.by_expert && !perf->options.sum_at_owner) {
        for (uint32_t e = 0; e < hand->ndest; e++)
            own[oracle_owner(perf->routing, e)] += hand->begin[e + 1] - hand->begin[e];
        xep_group_allgather(perf->group, own, pair_of(limit, PERF_COMBINE, 0, 0), nranks * sizeof *own);
    }
    free(own);
}

/* First row of this rank among those that a rank has for the others. */
static uint64_t begin_of(const perf_cuda_limit_t *limit, perf_op_t op, uint32_t at)
{
    uint64_t rows = 0;

    for (uint32_t from = 0; from < limit->perf->info.rank; from++) rows += *pair_of(limit, op, from, at);
    return rows;
}

/* Of the rows that this rank has for others, or of others: the most of any operation. */
static size_t bytes_of(const perf_cuda_limit_t *limit, int received)
{
    const perf_t *perf = limit->perf;
    size_t most = 0;

    for (perf_op_t op = PERF_DISPATCH; op < PERF_OPS; op++) {
        uint64_t rows = 0;
        for (uint32_t r = 0; r < perf->info.nranks; r++)
            rows += received ? *pair_of(limit, op, r, perf->info.rank) : *pair_of(limit, op, perf->info.rank, r);
        if (rows * row_of(perf, op) > most) most = rows * row_of(perf, op);
    }
    return most;
}

/* Handles of the driver are for other processes: a rank has its own memory already. */
perf_cuda_limit_t *perf_cuda_limit_open(const perf_by_hand_t *hand)
{
    perf_t *perf = hand->perf;

    if (perf->cuda == NULL) return NULL;
    const perf_cuda_driver_t *driver = &perf->cuda->driver;
    const uint32_t nranks = perf->info.nranks, me = perf->info.rank;
    perf_cuda_limit_t *limit = oracle_alloc(sizeof *limit);
    perf_ipc_t own;

    limit->perf = perf;
    count_pairs(limit, hand);
    limit->there = oracle_alloc(nranks * sizeof *limit->there);
    limit->streams = oracle_alloc(nranks * sizeof *limit->streams);
    limit->here = perf_cuda_allocate(perf, bytes_of(limit, 0));
    limit->there[me] = perf_cuda_allocate(perf, bytes_of(limit, 1));
    perf_cuda_must(perf, driver->ipc_get(&own, limit->there[me]), "share memory of the device");
    perf_ipc_t *all = perf_gather(perf, &own, sizeof own);
    for (uint32_t r = 0; r < nranks; r++) {
        perf_cuda_must(perf, driver->stream_create(&limit->streams[r], NON_BLOCKING), "make a stream");
        if (r == me) continue;
        perf_cuda_must(perf, driver->ipc_open(&limit->there[r], all[r], PEER_ACCESS), "reach the memory of a peer");
    }
    free(all);
    perf_cuda_must(perf, driver->module_load(&limit->module, kernel_text), "load a kernel");
    perf_cuda_must(perf, driver->module_function(&limit->kernel, limit->module, "perf_copy"), "find a kernel");
    return limit;
}

/* Nobody frees what another rank still has open. */
void perf_cuda_limit_close(perf_cuda_limit_t *limit)
{
    if (limit == NULL) return;
    const perf_t *perf = limit->perf;
    const perf_cuda_driver_t *driver = &perf->cuda->driver;

    for (uint32_t r = 0; r < perf->info.nranks; r++)
        if (r != perf->info.rank) driver->ipc_close(limit->there[r]);
    xep_group_barrier(perf->group);
    driver->module_unload(limit->module);
    driver->release(limit->there[perf->info.rank]);
    driver->release(limit->here);
    free(limit->there);
    free(limit->streams);
    free(limit->pairs);
    free(limit);
}

/* By the copy engines, or by a kernel that shares the device with those for the other peers. */
static void copy_part(const perf_cuda_limit_t *limit, uintptr_t to, uintptr_t from, size_t bytes, int by_kernel,
                      void *stream)
{
    const perf_t *perf = limit->perf;
    const perf_cuda_driver_t *driver = &perf->cuda->driver;
    const unsigned nranks = perf->info.nranks, blocks = nranks < BLOCKS ? BLOCKS / nranks : 1;
    copy_t copy = {to, from, bytes};
    void *args = &copy;

    if (bytes == 0) return;
    if (!by_kernel) perf_cuda_must(perf, driver->copy(to, from, bytes, stream), "copy between devices");
    else
        perf_cuda_must(perf, driver->launch(limit->kernel, blocks, 1, 1, THREADS, 1, 1, 0, stream, &args, NULL),
                       "launch a kernel");
}

/*
 * At once by kernels, which copy engines do not reach together; in turn by these. Copies in one stream run one after
 * the other, those in several streams at once; own rows pass no link. Of a dispatch in turn own rows come last: with 4
 * H200 that takes 579 us, 616 beside the others; of a combine 662 and 604.
 */
void perf_cuda_limit_run(const perf_cuda_limit_t *limit, perf_op_t op, int in_turn)
{
    const perf_t *perf = limit->perf;
    const perf_cuda_driver_t *driver = &perf->cuda->driver;
    const uint32_t nranks = perf->info.nranks, me = perf->info.rank;
    const size_t row = row_of(perf, op);
    const int own_last = in_turn && op == PERF_DISPATCH;
    uintptr_t here = limit->here;

    for (uint32_t i = 0; i < nranks; i++) {
        const uint32_t r = (me + i + own_last) % nranks; /* not all to the same one at once */
        const size_t bytes = *pair_of(limit, op, me, r) * row;
        const uintptr_t there = limit->there[r] + begin_of(limit, op, r) * row;
        const uintptr_t to = op == PERF_DISPATCH ? there : here, from = op == PERF_DISPATCH ? here : there;
        void *stream = limit->streams[in_turn && (r != me || own_last) ? (me + 1) % nranks : r];
        copy_part(limit, to, from, bytes, !in_turn, stream);
        here += bytes;
    }
    for (uint32_t r = 0; r < nranks; r++) perf_cuda_must(perf, driver->stream_wait(limit->streams[r]), "wait");
}
