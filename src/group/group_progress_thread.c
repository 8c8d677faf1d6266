/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The thread rests like any waiting loop, so a process that computes shares its core with it only while something is in
 * flight. It begins to look sharply again when the number of operations changes.
 */
#include "group.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "error.h"

struct xep_progress_thread {
    xep_group_t *group;
    pthread_t thread;
    atomic_int stop;
    atomic_int event; /* what event loops poll; -1: none was asked for */
};

/*
 * A group that has nothing in flight lets the thread sleep: it is woken by no one, and looks a thousand times a second.
 */
static void *progress_main(void *arg)
{
    xep_progress_thread_t *self = arg;
    xep_backoff_t backoff;
    uint32_t active_before = 0;
    xep_backoff_begin(&backoff, self->group->backoff, UINT64_MAX);
    while (!atomic_load_explicit(&self->stop, memory_order_acquire)) {
        uint32_t active = atomic_load_explicit(&self->group->active, memory_order_relaxed);
        xep_group_progress(self->group);
        if (active != active_before) xep_backoff_begin(&backoff, self->group->backoff, UINT64_MAX);
        active_before = active;
        (void)xep_group_backoff(self->group, &backoff);
    }
    return NULL;
}

xep_status_t xep_progress_start(xep_group_t *group, xep_progress_thread_t **thread_p)
{
    xep_progress_thread_t *self = calloc(1, sizeof *self);
    if (self == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for a progress thread");
    self->group = group;
    atomic_init(&self->event, -1);
    int ret = xep_thread_start(&self->thread, progress_main, self);
    if (ret != 0) {
        free(self);
        return xep_fail(XEP_ERR_NO_MEMORY, "cannot start a progress thread: %s", strerror(ret));
    }
    *thread_p = self;
    return XEP_OK;
}

/* It is in no call that waits, so this takes one round of its loop. */
void xep_progress_stop(xep_progress_thread_t *self)
{
    if (self == NULL) return;
    atomic_store_explicit(&self->stop, 1, memory_order_release);
    pthread_join(self->thread, NULL);
    if (self->event >= 0) close(self->event);
    free(self);
}

/* ---- what event loops poll ---- */

xep_status_t xep_progress_open_event(xep_progress_thread_t *self, int *fd_p)
{
    int fd, none = -1;
    if (self == NULL)
        return xep_fail(XEP_ERR_UNSUPPORTED, "the group has no descriptor to poll: XEP_PROGRESS is call (thread)");
    fd = atomic_load(&self->event);
    if (fd < 0) {
        fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (fd < 0) return xep_fail(XEP_ERR_NO_MEMORY, "cannot open an event descriptor: %s", strerror(errno));
        if (!atomic_compare_exchange_strong(&self->event, &none, fd)) {
            close(fd); /* another thread was faster */
            fd = none;
        }
    }
    *fd_p = fd;
    return XEP_OK;
}

/* A write fails only where so many events are unread that the descriptor is readable anyway. */
void xep_progress_raise_event(xep_progress_thread_t *self)
{
    int fd = self == NULL ? -1 : atomic_load_explicit(&self->event, memory_order_acquire);
    if (fd >= 0) (void)eventfd_write(fd, 1);
}
