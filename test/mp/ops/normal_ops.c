/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 1 2 4, brief: 1 4, limit: 180 */

/* Operations of normal in flight: what every mode must do, and what normal alone knows before its peers begin. */

#include "mode_ops.h"
#include "mp_rig.h"

/* Places and counts; the rest of the struct is as it was given, and between its fields may be anything. */
static int is_same(const xep_recv_t *a, const xep_recv_t *b)
{
    return a->rows == b->rows && a->capacity == b->capacity && a->x == b->x && a->x_stride == b->x_stride &&
           a->topk_idx == b->topk_idx && a->topk_weights == b->topk_weights && a->scales == b->scales &&
           a->src_token == b->src_token && a->src_begin == b->src_begin && a->rank_rows == b->rank_rows &&
           a->expert_rows == b->expert_rows && a->dtype == b->dtype && a->hidden == b->hidden && a->topk == b->topk;
}

/*
 * Counts of a cached dispatch are known without the peers, which have not begun it. Another thread may look at them
 * from then on, so the library writes them once: what the test writes where it knows of nothing stays.
 */
static void cached_counts_first(xep_group_t *group)
{
    const mp_case_t c = mode_ops_case("normal");
    mp_job_t job;
    xep_handle_t *first, *again;
    xep_request_t *req;
    mp_job_begin(&job, &c, 14, group);
    xep_dispatch_args_t a = mp_job_dispatch(&job);
    MP_OK(xep_dispatch(job.buffer, &a, &first, NULL));
    a = mp_job_cached(&job, first);
    for (uint32_t last = 0; last < mp_nranks(); last++) {
        if (mp_rank() == last) MP_OK(xep_group_barrier(group));
        MP_OK(xep_dispatch(job.buffer, &a, &again, &req));
        MP_OK(xep_request_wait_counts(req));
        MP_CHECK(mp_recv(again)->rows == mp_recv(first)->rows);
        const xep_recv_t early = *mp_recv(again);
        uint32_t *mark = (uint32_t *)(uintptr_t)&mp_recv(again)->reserved;
        *mark = 77;
        if (mp_rank() != last) MP_OK(xep_group_barrier(group));
        MP_OK(xep_request_wait(req));
        MP_CHECK(is_same(&early, mp_recv(again)) && *mark == 77);
        xep_request_free(req);
        mp_job_check_recv(&job, again);
        xep_handle_release(again);
    }
    xep_handle_release(first);
    mp_job_close(&job);
}

static void two_threads(xep_group_t *group)
{
    const mp_case_t c = mode_ops_case("normal");
    mp_case_t other = c;
    other.hidden = 77;
    other.copy_in = 1;
    mode_ops_two_threads(group, &other, &c);
}

int main(void)
{
    xep_group_t *group = mp_group();
    mode_ops_run(group, "normal");
    two_threads(group);
    cached_counts_first(group);
    mp_case_t c = mode_ops_case("normal");
    c.hidden = 104;
    mode_ops_fewer_bits(group, &c, 0);
    return mp_end(group);
}
