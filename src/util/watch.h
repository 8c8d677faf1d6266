/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Waits that explain themselves: each says what it waits for when half of its time has passed, and whenever the process
 * gets the signal of XEP_EXPLAIN.
 */
#ifndef XEP_UTIL_WATCH_H
#define XEP_UTIL_WATCH_H

#include <stdatomic.h>
#include <stdint.h>

#include <xep/xep.h>

/** Writes what is waited for, and for whom. */
typedef void (*xep_watch_fn)(void *arg, char *text, size_t bytes);

/** One wait: watched by the thread that waits. */
typedef struct xep_watch {
    xep_watch_fn explain; /* NULL: it says nothing */
    void *arg;
    uint64_t begin_ns;    /* of the first look; 0: there was none */
    uint64_t deadline_ns; /* UINT64_MAX: none */
    unsigned answered;    /* questions before it */
    int warned, counted;
} xep_watch_t;

extern atomic_uint xep_watch_questions; /* signals so far; a handler counts them */

/** Sets the signal that asks (SIGUSR1, SIGUSR2); 0: none. XEP_ERR_INVALID: the program has a handler for it. */
xep_status_t xep_watch_listen(int signal);

/** Begins to watch a wait that has found nothing at its first look. end gives back what begin took. */
void xep_watch_begin(xep_watch_t *watch, xep_watch_fn explain, void *arg, uint64_t deadline_ns);
void xep_watch_end(const xep_watch_t *watch);

/** At a time of xep_clock_ns(): says what is due. */
void xep_watch_poll(xep_watch_t *watch, uint64_t now_ns);

/**
 * Whether a question came since the wait began or last answered. Costs a load: may be called in every round of a loop.
 */
static inline int xep_watch_is_asked(const xep_watch_t *watch)
{
    return atomic_load_explicit(&xep_watch_questions, memory_order_relaxed) != watch->answered;
}

/**
 * Until it is called with NULL, this process is in a call of another library, as text says ("is in PMIx_Init"), and the
 * handler itself says so. text must stay valid.
 */
void xep_watch_outside(const char *text);

#endif
