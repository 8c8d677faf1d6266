/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Who is alive: ranks of this host are looked up by process number and start time, as numbers are reused; ranks
 * elsewhere count as dead only when the launcher or the transport, with its heartbeat, says so.
 */
#include "group.h"

#include "error.h"

xep_status_t xep_group_fail_out(uint32_t by)
{
    if (by == XEP_OUT_NO_QUORUM)
        return xep_fail(XEP_ERR_PEER, "this rank is out of the group: it is cut off from most of the others");
    if (by == XEP_OUT_BY_OTHERS)
        return xep_fail(XEP_ERR_PEER, "this rank is out of the group: the others have gone on without it");
    return xep_fail(XEP_ERR_PEER, "this rank is out of the group: rank %u and others have gone on without it", by);
}

static int is_spared(const xep_group_t *group, uint32_t rank, int spares)
{
    return rank == group->rank || (spares && xep_group_is_out(group, rank));
}

xep_status_t xep_group_check_ended(xep_group_t *group, int spares)
{
    uint32_t dead = xep_boot_dead_rank(group->boot);
    if (dead < group->nranks && !(spares && xep_group_is_out(group, dead)))
        return xep_fail(XEP_ERR_PEER, "rank %u has died (the launcher says so)", dead);
    /* the launcher may not tell, or not yet; the kernel knows of the ranks on this host */
    for (uint32_t r = 0; r < group->nranks; r++) {
        const xep_peer_t *peer = &group->peers[r];
        if (is_spared(group, r, spares) || !peer->visible) continue;
        if (xep_host_process_gone(peer->pid, peer->start))
            return xep_fail(XEP_ERR_PEER, "rank %u has died (process %d is gone)", r, peer->pid);
    }
    return XEP_OK;
}

/* Connections are checked last: a rank that leaves because another has died closes its own. */
xep_status_t xep_group_check_peers(xep_group_t *group, int spares)
{
    char why[160];
    xep_status_t status = xep_group_check_ended(group, spares);
    if (status != XEP_OK) return status;
    for (uint32_t r = 0; r < group->nranks; r++)
        if (!is_spared(group, r, spares) && group->transport->ops->is_gone(group->transport, r, why, sizeof why))
            return xep_fail(XEP_ERR_PEER, "%s", why);
    return XEP_OK;
}

int xep_group_has_ended(const xep_group_t *group, uint32_t rank)
{
    const xep_peer_t *peer = &group->peers[rank];
    if (rank == group->rank) return 0;
    if (xep_boot_dead_rank(group->boot) == rank) return 1;
    return peer->visible && xep_host_process_gone(peer->pid, peer->start);
}

int xep_group_has_died(const xep_group_t *group, uint32_t rank)
{
    char why[160];
    if (rank == group->rank) return 0;
    return group->transport->ops->is_gone(group->transport, rank, why, sizeof why) || xep_group_has_ended(group, rank);
}

/* Under the lock, which progress only tries to take: so it never waits while a buffer is made. */
void xep_group_add_task(xep_group_t *group, xep_group_task_t *task)
{
    pthread_mutex_lock(&group->tasks_lock);
    task->next = group->tasks;
    group->tasks = task;
    pthread_mutex_unlock(&group->tasks_lock);
}

/* After this no thread runs the task any more: a thread that runs it holds the lock. */
void xep_group_remove_task(xep_group_t *group, xep_group_task_t *task)
{
    pthread_mutex_lock(&group->tasks_lock);
    for (xep_group_task_t **link = &group->tasks; *link != NULL; link = &(*link)->next)
        if (*link == task) {
            *link = task->next;
            break;
        }
    pthread_mutex_unlock(&group->tasks_lock);
}

/*
 * One thread at a time makes progress: the others need not wait for it. Without an operation in flight only the
 * transport is asked, without the lock.
 */
void xep_group_progress(xep_group_t *group)
{
    group->transport->ops->progress(group->transport);
    /* a rank without operations is asked, too, who is out */
    if (atomic_load_explicit(&group->active, memory_order_relaxed) == 0 && !group->goes_on) return;
    if (pthread_mutex_trylock(&group->tasks_lock) != 0) return; /* another thread is making progress */
    for (xep_group_task_t *task = group->tasks; task != NULL; task = task->next) task->run(task);
    pthread_mutex_unlock(&group->tasks_lock);
}
