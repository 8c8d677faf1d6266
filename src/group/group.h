/* SPDX-License-Identifier: BSD-3-Clause */

/** The ranks that work together: who is in and alive, and what keeps their bytes and operations going. */
#ifndef XEP_GROUP_H
#define XEP_GROUP_H

#include <pthread.h>
#include <stdatomic.h>

#include <xep/xep.h>

#include "backoff.h"
#include "boot.h"
#include "config.h"
#include "host.h"
#include "process.h"
#include "transport.h"

typedef struct xep_progress_thread xep_progress_thread_t; /* group_progress_thread.c */
typedef struct xep_group_accounts xep_group_accounts_t;   /* group_account.h */

typedef struct xep_inbox xep_inbox_t;         /* group_ctl.c */
typedef struct xep_recording xep_recording_t; /* recording.h */

/** What a group keeps going besides its transport: the operations of a buffer. Its owner embeds it. */
typedef struct xep_group_task {
    struct xep_group_task *next;
    void (*run)(struct xep_group_task *task); /* from any thread, one at a time; does not block */
} xep_group_task_t;

typedef struct xep_peer {
    uint32_t node;
    int mapped; /* by the control heap; the same on both sides */
    int32_t pid;
    uint64_t start; /* of the process, so that its number used again is noticed */
    uint64_t host;  /* identity: boot id, IPC and process namespaces; of its own where that was not proved */
    int visible;    /* of this host, and its process can be looked up by its number (XEP_LIVENESS) */
} xep_peer_t;

/** Asked every few ms of a wait: XEP_INPROGRESS, or why what it waits for will not come. */
typedef struct xep_hope {
    xep_status_t (*ask)(void *arg); /* NULL: nothing is asked */
    void *arg;
} xep_hope_t;

/** An allgather over the control heap: group_control.c. */
typedef struct xep_gather {
    size_t bytes, done; /* that each rank gives, in all rounds together; those of rounds that have ended */
    uint64_t within;    /* the call that it belongs to, and the how many-th it is there */
    const void *recv;   /* has what these rounds brought; NULL: nobody asks for that any more */
} xep_gather_t;

/** Whether, why and since when a rank is out: group_out.h. */
typedef struct xep_group_out {
    _Atomic uint64_t since_ns;
    _Atomic int reason; /* xep_out_reason_t; 0: it is not out */
} xep_group_out_t;

struct xep_group {
    xep_config_t config;
    xep_boot_t *boot;           /* owned */
    xep_transport_t *transport; /* owned */
    uint32_t rank, nranks;
    uint32_t nnodes;
    uint32_t here, processors;  /* ranks of this host, this one too; what they may run on, all together */
    xep_backoff_kind_t backoff; /* a waiting loop of it; where that is oversubscribed: */
    uint64_t awake_ns;          /* what a wait lasts, at least, before its first sleep */
    int32_t timeout_ms;
    unsigned forks;                 /* xep_forks of the process that made it */
    xep_peer_t *peers;              /* [nranks] */
    xep_host_word_t word;           /* by which ranks of this host know this one while it is created */
    xep_heap_wire_t *control;       /* group_control.c */
    xep_group_out_t *out;           /* [nranks] who is out */
    atomic_uint outs;               /* counts the ranks that are */
    atomic_int goes_on;             /* without ranks: it has, or had, a buffer that does */
    atomic_int left_out;            /* this rank is out: nobody answers any more */
    int connected;                  /* every rank has been reached through it */
    xep_group_accounts_t *accounts; /* NULL before there is a control heap */
    uint32_t buffers;               /* that were created so far, the same on every rank */
    uint64_t barriers;              /* entered so far */
    uint64_t gathers, rounds;       /* allgathers over the control heap, and rounds of them all */
    const char *gathers_for;        /* the call that they belong to, as users know it; NULL: one of their own */
    uint32_t gathers_of;            /* of that call, so far */
    xep_gather_t gather;            /* the one that it is in, or has given up in a round; bytes 0: none */
    int traced;                     /* some rank writes a trace */
    int syncs_trace;                /* this one does, and its barriers align the clocks of it */
    xep_recording_t *recording;     /* NULL: none is asked for (XEP_RECORD) */
    char **control_of; /* [nranks] the control heap of ranks that are mapped; NULL: others, and this rank */
    atomic_int aborted;
    _Atomic uint64_t ended;     /* who has aborted it, and why: group_abort.c; 0: nobody */
    _Atomic uint64_t heard;     /* of the own doorbell: when it was looked at last */
    _Atomic uint64_t doubted;   /* likewise, of one who does not know whether all ranks have it; 0: nobody */
    _Atomic uint64_t ctl_end;   /* what the last rank has said by control message that has aborted it; 0: none has */
    _Atomic uint32_t ctl_by;    /* that rank */
    xep_inbox_t *inbox;         /* group_ctl.c */
    atomic_int shrunk;          /* xep_group_shrink() was called */
    atomic_int told_end;        /* the ranks that are not mapped have been told */
    atomic_uint active;         /* operations in flight on all buffers */
    pthread_mutex_t tasks_lock; /* guards the list; taken to change it, and tried by progress */
    xep_group_task_t *tasks;
    xep_progress_thread_t *progress_thread; /* NULL: progress is made inside calls */
};

/** Whether a process made it that this one was forked from: then nothing of it may be used, nor taken apart. */
static inline int xep_group_is_inherited(const xep_group_t *group)
{
    return group->forks != xep_forks;
}

/** Whether nobody waits for the rank any more. Any thread. */
static inline int xep_group_is_out(const xep_group_t *group, uint32_t rank)
{
    return group->out != NULL && atomic_load_explicit(&group->out[rank].reason, memory_order_acquire) != 0;
}

/** XEP_ERR_PEER, in the words of every call of a rank that is out; by: a rank that has gone on without it, or these. */
#define XEP_OUT_BY_OTHERS UINT32_MAX
#define XEP_OUT_NO_QUORUM (UINT32_MAX - 1)
xep_status_t xep_group_fail_out(uint32_t by);

/**
 * XEP_OK, or XEP_ERR_PEER naming a rank that is known to have died; spares: and is not out. Slow: every 100 ms is
 * enough.
 */
xep_status_t xep_group_check_peers(xep_group_t *group, int spares);

/** The same of ranks of which it is certain: as xep_group_has_ended(). As slow. */
xep_status_t xep_group_check_ended(xep_group_t *group, int spares);

/** Whether it is known to have died. As slow. */
int xep_group_has_died(const xep_group_t *group, uint32_t rank);

/** Whether that is certain: the launcher says so, or the kernel of this host, not just a connection that is lost. */
int xep_group_has_ended(const xep_group_t *group, uint32_t rank);

void xep_group_add_task(xep_group_t *group, xep_group_task_t *task);
void xep_group_remove_task(xep_group_t *group, xep_group_task_t *task);

/** Moves what the transport can move, and runs the tasks unless another thread is at it. */
void xep_group_progress(xep_group_t *group);

/** xep_backoff_wait(), which does not rest while the transport moves bytes. */
static inline int xep_group_backoff(const xep_group_t *group, xep_backoff_t *backoff)
{
    return xep_backoff_wait(backoff, atomic_load_explicit(&group->transport->moves, memory_order_relaxed));
}

/* ---- group_create.c ---- */

/* How a group comes to be: the ranks meet, connect, and find out which of them share memory; and how it ends. */

/** Takes boot over, also on error. Collective. */
xep_status_t xep_group_open(const xep_config_t *config, int32_t timeout_ms, xep_boot_t *boot,
                            xep_transport_open_fn open_transport, xep_group_t **group_p);

/** Closes a group that not all ranks could make, or that nobody wants: waits for nobody. NULL is a no-op. */
void xep_group_drop(xep_group_t *group);

/** xep_group_destroy(), arguments checked. */
xep_status_t xep_group_close(xep_group_t *group);

/* ---- group_hello.c ---- */

/* What ranks say of themselves first, and what all of them conclude from it. */

/**
 * Collective. Fills in group->peers and group->out. Afterwards this rank's word is shown until xep_host_hide().
 * XEP_ERR_MISMATCH, with a sentence: ranks disagree on a setting or run different versions.
 */
xep_status_t xep_group_hello(xep_group_t *group, xep_neighbours_t *neighbours, xep_whereabouts_t *where);

/* ---- group_progress_thread.c ---- */

/* A thread that makes progress of a group until it is stopped: XEP_PROGRESS=thread. */

xep_status_t xep_progress_start(xep_group_t *group, xep_progress_thread_t **thread_p);
void xep_progress_stop(xep_progress_thread_t *thread);

/** xep_group_event_fd() of the group of that thread, which may be NULL. */
xep_status_t xep_progress_open_event(xep_progress_thread_t *thread, int *fd_p);

/** A task has ended an operation: whoever polls is told. NULL is a no-op. */
void xep_progress_raise_event(xep_progress_thread_t *thread);

#endif
