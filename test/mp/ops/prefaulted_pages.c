/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 4, limit: 120 */

/*
 * Making a buffer maps the pages that an even load needs of one slot: the first operations meet hardly any that is
 * missing, and most of the peers' pages, which this rank will never touch, are left alone. Those of the second slot
 * come when it is first used, and only for as many tokens as are there. Both modes, and rows read in place.
 */

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "mp_job.h"
#include "mp_rig.h"

/* Areas of a row in a slot: by rank as received and as combined; by expert as combined, compact and padded. */
enum { PAGE = 4096, BUFFER_ROWS = 2, METADATA = 128 /* pages of each peer */, FEW = 4 /* tokens */ };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SHADOWED = 1 }; /* the sanitizer's own memory is met page by page */
#else
enum { SHADOWED = 0 };
#endif

static const mp_case_t cases[] = {
    {.name = "normal", MP_SHAPE(64, 2, 2048, 1024)},
    {.name = "ll", .mode = "ll", MP_SHAPE(64, 2, 2048, 256)},
};

/* Of mappings as large as a heap. */
typedef struct page_count {
    uint64_t own;           /* pages of the own heap that this process has */
    uint64_t all, of_peers; /* pages of the other heaps, and those of them that it has */
} page_count_t;

static void count_pages(const char *own, uint64_t heap_bytes, page_count_t *count)
{
    FILE *file = fopen("/proc/self/smaps", "r");
    char line[512];
    uintptr_t begin, end;
    uint64_t kilobytes;
    int counts = 0, is_own = 0;
    *count = (page_count_t){0};
    MP_CHECK(file != NULL);
    while (fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &begin, &end) == 2) {
            counts = end - begin >= heap_bytes && strstr(line, "rw-s") != NULL;
            is_own = (uintptr_t)own >= begin && (uintptr_t)own < end;
            if (counts && !is_own) count->all += (end - begin) / PAGE;
        } else if (counts && sscanf(line, "Rss: %" SCNu64, &kilobytes) == 1) {
            *(is_own ? &count->own : &count->of_peers) += kilobytes * 1024 / PAGE;
        }
    }
    fclose(file);
}

static uint64_t faults(void)
{
    struct rusage usage;
    MP_CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
    return (uint64_t)usage.ru_minflt;
}

/* What this rank uses of its peers' rows in a dispatch: by rank, those it sends; by expert, about all that they get. */
static uint64_t used_rows(const mp_job_t *job, const xep_recv_t *recv)
{
    uint64_t rows = 0;
    if (recv->rank_rows == NULL) return (mp_nranks() - 1) * job->c->tokens * job->c->topk;
    for (uint32_t r = 0; r < mp_nranks(); r++)
        if (r != mp_rank()) rows += recv->rank_rows[mp_rank() * mp_nranks() + r];
    return rows;
}

/* Half as many again for a load that is not quite even; by expert, also the rows that peers send: four operations'. */
static void check_peer_pages(const mp_job_t *job, uint64_t present, uint64_t used)
{
    uint64_t others = mp_nranks() - 1, sent = job->c->mode != NULL ? others * job->c->tokens * 4 * 9 / 8 : 0;
    if (present > used * BUFFER_ROWS * 3 / 2 + sent + others * METADATA)
        mp_fail(__FILE__, __LINE__, "%s: %" PRIu64 " pages of peers for %" PRIu64 " rows there", job->c->name, present,
                used);
}

/* Of 2048 bf16 each row is a page, so that pages can be counted in rows. Returns how many are used there. */
static uint64_t first_round(mp_job_t *job)
{
    xep_handle_t *handle;
    xep_dispatch_args_t dispatch = mp_job_dispatch(job);
    uint64_t before = faults(), met, rows;
    MP_OK(xep_dispatch(job->buffer, &dispatch, &handle, NULL));
    met = faults() - before;
    rows = mp_recv(handle)->rows;
    uint64_t used = used_rows(job, mp_recv(handle));
    mp_job_check_recv(job, handle);
    xep_combine_args_t combine = mp_job_combine(job, handle);
    before = faults();
    MP_OK(xep_combine(handle, &combine, NULL));
    met += faults() - before;
    mp_job_check_out(job);
    xep_handle_release(handle);
    if (!SHADOWED && met * 4 > rows)
        mp_fail(__FILE__, __LINE__, "%s: %" PRIu64 " pages were missing for %" PRIu64 " rows", job->c->name, met, rows);
    return used;
}

static uint64_t count_own(const mp_job_t *job)
{
    void *own;
    size_t bytes;
    page_count_t count;
    MP_OK(xep_buffer_memory(job->buffer, &own, &bytes));
    count_pages(own, bytes, &count);
    return count.own;
}

/* How many pages a dispatch brings that finds the first slot taken, and all its rows right if there are so many. */
static uint64_t grow(mp_job_t *job, uint64_t tokens, uint64_t *rows_p)
{
    xep_handle_t *handle;
    xep_dispatch_args_t dispatch = mp_job_dispatch(job);
    uint64_t before = count_own(job);
    dispatch.tokens = tokens;
    MP_OK(xep_dispatch(job->buffer, &dispatch, &handle, NULL));
    *rows_p = mp_recv(handle)->rows;
    if (tokens == job->c->tokens) mp_job_check_recv(job, handle);
    xep_handle_release(handle);
    return count_own(job) - before;
}

static void second_slot(mp_job_t *job)
{
    xep_handle_t *handle;
    xep_dispatch_args_t dispatch = mp_job_dispatch(job);
    uint64_t rows, few, grown;
    MP_OK(xep_dispatch(job->buffer, &dispatch, &handle, NULL));
    few = grow(job, FEW, &rows);
    grown = grow(job, job->c->tokens, &rows);
    if (few > grown)
        mp_fail(__FILE__, __LINE__, "%s: %" PRIu64 " pages of a second slot for %d tokens", job->c->name, few, FEW);
    if (grown < rows)
        mp_fail(__FILE__, __LINE__, "%s: %" PRIu64 " pages more for a second slot of %" PRIu64 " rows", job->c->name,
                grown, rows);
    grown = grow(job, job->c->tokens, &rows);
    if (grown * 4 > rows)
        mp_fail(__FILE__, __LINE__, "%s: %" PRIu64 " pages were missing in a second slot that was used", job->c->name,
                grown);
    xep_handle_release(handle);
}

/* Rows that are read where their source has them: each is a page of another rank's. */
static void read_in_place(xep_group_t *group)
{
    static const mp_case_t c = {.name = "in place", MP_SHAPE(64, 2, 2048, 1024), .in_place = 1};
    mp_job_t job;
    xep_handle_t *handle;
    unsigned sum = 0;
    mp_job_begin(&job, &c, 78, group);
    xep_dispatch_args_t args = mp_job_dispatch(&job);
    mp_job_place(&job, &args);
    MP_OK(xep_dispatch(job.buffer, &args, &handle, NULL));
    const xep_recv_t *recv = mp_recv(handle);
    uint64_t before = faults();
    for (uint64_t i = 0; i < recv->rows; i++) sum += *(const volatile unsigned char *)recv->row[i];
    uint64_t met = faults() - before;
    if (met * 4 > recv->rows)
        mp_fail(__FILE__, __LINE__, "%" PRIu64 " pages of peers were missing for %" PRIu64 " rows (%u)", met,
                recv->rows, sum);
    mp_job_check_recv(&job, handle);
    xep_handle_release(handle);
    mp_job_close(&job);
}

static void pages_of(xep_group_t *group, const mp_case_t *c)
{
    mp_job_t job;
    void *own;
    size_t bytes;
    page_count_t count;
    mp_job_begin(&job, c, 77, group);
    MP_OK(xep_buffer_memory(job.buffer, &own, &bytes));
    count_pages(own, bytes, &count);
    MP_CHECK(count.all >= (mp_nranks() - 1) * (bytes / PAGE));
    if (count.of_peers * 2 > count.all)
        mp_fail(__FILE__, __LINE__, "%s: %" PRIu64 " of %" PRIu64 " pages of peers", c->name, count.of_peers,
                count.all);
    check_peer_pages(&job, count.of_peers, first_round(&job));
    second_slot(&job);
    mp_job_close(&job);
}

int main(void)
{
    xep_group_t *group = mp_group();
    if (mp_group_info(group).nnodes != 1) return mp_skip("not all peers are mapped");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) pages_of(group, &cases[i]);
    read_in_place(group);
    return mp_end(group);
}
