/* SPDX-License-Identifier: BSD-3-Clause */

/* What keeps bytes and operations going: inside waits, and by threads when asked. */

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buffer.h"
#include "error.h"
#include "group.h"
#include "host.h"

struct xep_progress_thread {
    xep_group_t *group;
    pthread_t thread;
    atomic_int stop;
};

void xep_group_progress(xep_group_t *group)
{
    group->transport->ops->progress(group->transport);
    if (atomic_load_explicit(&group->active, memory_order_relaxed) == 0) return;
    if (pthread_mutex_trylock(&group->buffers_lock) != 0) return; /* somebody else is at it */
    for (xep_buffer_t *b = group->buffers; b != NULL; b = b->next) xep_buffer_try_progress(b);
    pthread_mutex_unlock(&group->buffers_lock);
}

static void *progress_main(void *arg)
{
    xep_progress_thread_t *self = arg;
    xep_waiting_t waiting;
    uint32_t active_before = 0;
    xep_waiting_begin(&waiting, self->group->spins, UINT64_MAX);
    while (!atomic_load_explicit(&self->stop, memory_order_acquire)) {
        uint32_t active = atomic_load_explicit(&self->group->active, memory_order_relaxed);
        xep_group_progress(self->group);
        if (active != active_before) xep_waiting_begin(&waiting, self->group->spins, UINT64_MAX);
        active_before = active;
        (void)xep_group_rest(self->group, &waiting);
    }
    return NULL;
}

xep_status_t xep_progress_start(xep_group_t *group, xep_progress_thread_t **thread_p)
{
    xep_progress_thread_t *self = calloc(1, sizeof *self);
    sigset_t all, old;
    int ret;
    if (self == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for a progress thread");
    self->group = group;
    sigfillset(&all); /* handlers belong to the application's threads */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    ret = pthread_create(&self->thread, NULL, progress_main, self);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (ret != 0) {
        free(self);
        return xep_fail(XEP_ERR_NO_MEMORY, "cannot start a progress thread: %s", strerror(ret));
    }
    *thread_p = self;
    return XEP_OK;
}

void xep_progress_stop(xep_progress_thread_t *self)
{
    if (self == NULL) return;
    atomic_store_explicit(&self->stop, 1, memory_order_release);
    pthread_join(self->thread, NULL);
    free(self);
}

xep_status_t xep_group_check_peers(xep_group_t *group)
{
    uint32_t dead = group->boot->ops->dead_rank(group->boot);
    if (dead < group->nranks)
        return xep_fail(XEP_ERR_PEER, "rank %u has died (the launcher says so)", dead);
    for (uint32_t r = 0; r < group->nranks; r++) {
        const xep_peer_t *peer = &group->peers[r];
        if (r == group->rank || peer->host != group->peers[group->rank].host) continue;
        if (xep_host_process_gone(peer->pid, peer->start))
            return xep_fail(XEP_ERR_PEER, "rank %u has died (process %d is gone)", r, peer->pid);
    }
    return XEP_OK;
}

static uint64_t word_at(const void *words, size_t stride, uint32_t rank)
{
    const _Atomic uint64_t *word = (const _Atomic uint64_t *)(const void *)((const char *)words + rank * stride);
    return atomic_load_explicit(word, memory_order_acquire);
}

/* first rank at or after from whose word is too small, or nranks */
static uint32_t first_missing(const xep_group_t *group, const void *words, size_t stride, uint64_t value, uint32_t from)
{
    while (from < group->nranks && word_at(words, stride, from) >= value) from++;
    return from;
}

static xep_status_t missing(const xep_group_t *group, const void *words, size_t stride, uint64_t value,
                            xep_status_t status, const char *what, const char *why)
{
    char list[256] = "";
    size_t used = 0;
    uint32_t r = first_missing(group, words, stride, value, 0);
    for (; r < group->nranks && used < sizeof list - 16; r = first_missing(group, words, stride, value, r + 1))
        used += (size_t)snprintf(list + used, sizeof list - used, " %u", r);
    return xep_fail(status, "%s: %s; still missing: rank%s%s", what, why, list, r < group->nranks ? " ..." : "");
}

xep_status_t xep_group_wait_words(xep_group_t *group, const void *words, size_t stride, uint64_t value,
                                  int32_t timeout_ms, const char *what)
{
    xep_waiting_t waiting;
    uint64_t slow = 0;
    uint32_t r = 0;
    xep_waiting_begin(&waiting, group->spins, xep_deadline(timeout_ms));
    while ((r = first_missing(group, words, stride, value, r)) < group->nranks) {
        xep_status_t status = xep_group_usable(group);
        if (status != XEP_OK) return status;
        xep_group_progress(group);
        if (!xep_group_rest(group, &waiting))
            return missing(group, words, stride, value, XEP_ERR_TIMEOUT, what, "deadline passed");
        if (!xep_waiting_slow(&waiting, &slow) || xep_group_check_peers(group) == XEP_OK) continue;
        if (first_missing(group, words, stride, value, 0) == group->nranks) return XEP_OK; /* its last word */
        return missing(group, words, stride, value, XEP_ERR_PEER, what, xep_last_error());
    }
    return XEP_OK;
}
