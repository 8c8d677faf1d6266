/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 1 4 8, limit: 240, brief: 4 */

/*
 * Buffers with an owner map: any rank has any number of experts, or none. All splits of the ranks into some without
 * experts and some with; maps that are wrong, or that ranks have differently.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mp_job.h"
#include "mp_rig.h"

static void run(xep_group_t *group, const mp_case_t *c)
{
    mp_job_t job;
    mp_job_begin(&job, c, 5, group);
    mp_job_rounds(&job, 3, 0);
    mp_job_close(&job);
}

/* Each in one of the modes, and with one kind of map. */
static void shapes(xep_group_t *group)
{
    for (uint32_t i = 0; i < MP_SHAPES; i = mp_next_shape(i)) {
        mp_case_t c = mp_shape(i, i % 2 == 0 ? "normal" : "ll");
        c.owners = i / 2 % 2 == 0 ? "cyclic" : "random:11";
        run(group, &c);
    }
}

/* Attention on the ranks below M, which have no expert, and experts on the others, which have no tokens. */
static void splits(xep_group_t *group, const char *mode)
{
    char owners[32];
    mp_case_t c = {.name = "split", .mode = mode, .owners = owners, .says_none = 1, MP_SHAPE(11, 4, 48, 12)};
    c.weights = 1;
    for (uint32_t without = 0; without < mp_nranks(); without++) {
        c.works = (1U << without) - 1; /* without = 0: all */
        snprintf(owners, sizeof owners, "split:%u", without);
        run(group, &c);
    }
}

/* Bytes of this rank's heap that have been touched, by whomever; 0: all are there, as UCX allocates POSIX memory. */
static size_t resident(const xep_buffer_t *buffer)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *pages;
    size_t bytes, found = 0;
    void *base;
    MP_OK(xep_buffer_memory((xep_buffer_t *)(uintptr_t)buffer, &base, &bytes));
    const size_t count = (bytes + page - 1) / page;
    pages = mp_alloc(count, 0);
    MP_CHECK(mincore(base, bytes, pages) == 0);
    for (size_t i = 0; i < count; i++) found += (pages[i] & 1) * page;
    mp_free(pages, "pages");
    return found == count * page ? 0 : found;
}

/* Three rounds of rank 0 with tokens and no expert, and others with experts and no tokens; what they have touched. */
static size_t touched(xep_group_t *group, const char *mode, int says_none)
{
    const mp_case_t split = {.name = "attention and experts",
                             .mode = mode,
                             .owners = "split:1",
                             .ragged = 2,
                             .says_none = says_none,
                             MP_SHAPE(8, 4, 1024, 256),
                             .weights = 1};
    mp_job_t job;
    mp_job_begin(&job, &split, 7, group);
    mp_job_rounds(&job, 3, 0);
    size_t bytes = resident(job.buffer);
    MP_CHECK(mp_buffer_info(job.buffer).tokens == (says_none ? job.tokens : split.tokens));
    xep_dispatch_args_t args = mp_job_dispatch(&job);
    if (says_none && job.tokens == 0) {
        int64_t idx[4] = {0, 1, 2, 3};
        char x[2048] = {0};
        args.tokens = 1, args.x = x, args.topk_idx = idx, args.topk_weights = NULL;
        MP_REFUSES(&job, &args, XEP_ERR_INVALID, "too many tokens: 1 (the buffer was made for 0)");
    }
    mp_job_close(&job);
    return bytes;
}

/*
 * 256 rows of 2 KiB are 512 KiB. Who has no experts touches no received ones; who has no tokens, none that are sent.
 * Where ranks do not map one another, rows of the others pass through the heap, too.
 */
static void memory(xep_group_t *group)
{
    const size_t rows = 512 << 10, normal = touched(group, "normal", 1), ll = touched(group, "ll", 1),
                 whole = touched(group, "ll", 0);
    if (mp_group_info(group).nnodes != 1 || normal == 0) return;
    if (mp_rank() == 0) MP_CHECK(normal < rows && ll < 5 * rows); /* four areas of cast rows */
    else MP_CHECK(normal > 2 * rows && ll > 5 * rows && ll + 2 * rows < whole);
}

/* A dispatch that begins when another one is done, another with its routing, and one of an index that is no expert. */
static void later(xep_group_t *group, const char *mode)
{
    const mp_case_t c = {.name = "later", .mode = mode, .owners = "cyclic", MP_SHAPE(8, 3, 40, 9), .slots = 3};
    xep_handle_t *first, *second, *third;
    xep_request_t *begun, *behind;
    mp_job_t job;
    mp_job_begin(&job, &c, 3, group);
    xep_dispatch_args_t args = mp_job_dispatch(&job);
    MP_OK(xep_dispatch(job.buffer, &args, &first, &begun));
    args.after = begun;
    MP_OK(xep_dispatch(job.buffer, &args, &second, &behind));
    mp_finish(behind);
    mp_finish(begun);
    mp_job_check_recv(&job, second);
    xep_dispatch_args_t cached = mp_job_cached(&job, second);
    xep_handle_release(first);
    third = mp_job_receive(&job, &cached);
    xep_handle_release(second);
    xep_handle_release(third);
    args = mp_job_dispatch(&job);
    if (job.tokens > 2) {
        int64_t *wrong = mp_alloc(job.tokens * c.topk * sizeof *wrong, 0);
        memset(wrong, 0xff, job.tokens * c.topk * sizeof *wrong);
        wrong[2 * c.topk + 1] = 8;
        args.topk_idx = wrong, args.topk_idx_stride = 0;
        MP_REFUSES(&job, &args, XEP_ERR_INVALID, "invalid topk_idx[2][1]: 8 (-1, or one of 8 experts)");
        mp_free(wrong, "wrong");
    }
    mp_job_round(&job);
    mp_job_close(&job);
}

/* Every rank learns which expert, and what both say; the group goes on. */
static void different(xep_group_t *group)
{
    uint32_t owners[300];
    char text[96];
    xep_buffer_params_t p = mp_small_params();
    xep_buffer_t *buffer = NULL;
    p.experts = 300, p.owners = owners;
    for (uint32_t at = 0; at < 300; at += at < 3 ? 1 : 97) {
        for (uint32_t e = 0; e < 300; e++) owners[e] = e % mp_nranks();
        if (mp_is_last()) owners[at] = (at + 1) % mp_nranks();
        if (mp_is_last()) owners[299] = (299 + 1) % mp_nranks();
        MP_FAILS(XEP_ERR_MISMATCH, xep_buffer_create(group, &p, &buffer));
        snprintf(text, sizeof text, "rank %u and rank 0 disagree on owners[%u]: %u, %u", mp_nranks() - 1, at,
                 (at + 1) % mp_nranks(), at % mp_nranks());
        MP_REASON(text);
    }
    p = mp_small_params();
    for (uint32_t e = 0; e < p.experts; e++) owners[e] = mp_nranks() - 1;
    if (mp_is_last()) p.owners = owners; /* all others: blocks */
    MP_SAYS(XEP_ERR_MISMATCH, "disagree on owners[0]", xep_buffer_create(group, &p, &buffer));
    MP_CHECK(buffer == NULL);
}

static void wrong(xep_group_t *group)
{
    uint32_t owners[64] = {0};
    xep_buffer_params_t p = mp_small_params();
    xep_buffer_size_t size = XEP_BUFFER_SIZE_INIT;
    xep_layout_args_t args = XEP_LAYOUT_ARGS_INIT;
    xep_layout_t layout = XEP_LAYOUT_INIT;
    xep_buffer_t *buffer = NULL, *followed = NULL;
    p.owners = owners;
    owners[5] = mp_nranks();
    MP_SAYS(XEP_ERR_INVALID, "invalid owners[5]: ", xep_buffer_size(&p, mp_nranks(), &size));
    MP_SAYS(XEP_ERR_INVALID, "invalid owners[5]: ", xep_buffer_create(group, &p, &buffer));
    args.experts = p.experts, args.nranks = mp_nranks(), args.topk = 1, args.owners = owners;
    MP_SAYS(XEP_ERR_INVALID, "invalid owners[5]: ", xep_layout(&args, &layout));
    owners[5] = 0;
    MP_OK(xep_buffer_create(group, &p, &buffer));
    memset(owners, 0xff, sizeof owners); /* the buffer has a map of its own */
    MP_SAYS(XEP_ERR_INVALID, "has an owner map", xep_buffer_follow(buffer, group, &followed));
    xep_buffer_destroy(buffer);
}

int main(void)
{
    xep_group_t *group = mp_group();
    shapes(group);
    splits(group, "normal");
    splits(group, "ll");
    if (mp_nranks() > 1) memory(group);
    later(group, "normal");
    later(group, "ll");
    wrong(group);
    if (mp_nranks() > 1) different(group);
    return mp_end(group);
}
