/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A signal handler may do next to nothing, so it counts, and the thread that waits looks at the count. If no thread
 * waits, the handler says so with one write() of a prepared text.
 */
#include "watch.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "error.h"
#include "log.h"

atomic_uint xep_watch_questions;

static atomic_int listens; /* the signal; 0: nobody asks, and nothing is counted */
static atomic_uint waiting;
static _Atomic(const char *) outside;

static void say(const char *text)
{
    const char *end = memchr(text, '\0', 256);
    ssize_t written = write(STDERR_FILENO, text, end == NULL ? 256 : (size_t)(end - text));
    (void)written; /* there is nobody to tell */
}

/* The handler's line does not name the rank: that would need a lock, and the user who asks knows the process. */
static void count_question(int number)
{
    int before = errno;
    (void)number;
    atomic_fetch_add(&xep_watch_questions, 1);
    const char *place = atomic_load(&outside);
    if (place != NULL) say(place);
    else if (atomic_load(&waiting) == 0) say("xep: nothing to explain: this process is not waiting in xep\n");
    errno = before;
}

/* The signal cuts sleeps of waits short, which is all right; system calls of the program are restarted. */
xep_status_t xep_watch_listen(int signal)
{
    struct sigaction present, ours = {.sa_handler = count_question, .sa_flags = SA_RESTART | SA_ONSTACK};
    if (signal == 0) return XEP_OK;
    if (sigaction(signal, NULL, &present) != 0)
        return xep_fail(XEP_ERR_INVALID, "invalid XEP_EXPLAIN: signal %d, %s (another signal, or no)", signal,
                        strerror(errno));
    if (present.sa_handler == count_question) return XEP_OK;
    if (present.sa_handler != SIG_DFL && present.sa_handler != SIG_IGN)
        return xep_fail(XEP_ERR_INVALID,
                        "invalid XEP_EXPLAIN: signal %d has a handler of the program (another signal, or no)", signal);
    sigemptyset(&ours.sa_mask);
    sigaction(signal, &ours, NULL);
    atomic_store(&listens, signal);
    return XEP_OK;
}

/* The library may be unloaded before its process ends: then the signal must not find code that is gone. */
__attribute__((destructor)) static void stop_listening(void)
{
    struct sigaction present;
    int number = atomic_load(&listens);
    if (number != 0 && sigaction(number, NULL, &present) == 0 && present.sa_handler == count_question)
        signal(number, SIG_IGN);
}

/* Reads the count of questions first: a question in between may be answered twice, but is never lost. */
void xep_watch_begin(xep_watch_t *watch, xep_watch_fn explain, void *arg, uint64_t deadline_ns)
{
    *watch = (xep_watch_t){.explain = explain,
                           .arg = arg,
                           .deadline_ns = deadline_ns,
                           .answered = atomic_load(&xep_watch_questions),
                           .counted = atomic_load_explicit(&listens, memory_order_relaxed) != 0};
    if (watch->counted) atomic_fetch_add(&waiting, 1);
}

void xep_watch_end(const xep_watch_t *watch)
{
    if (watch->counted) atomic_fetch_sub(&waiting, 1);
}

static void tell(xep_watch_t *watch, const char *why, uint64_t now_ns)
{
    char text[1024] = "";
    if (watch->explain == NULL) return;
    watch->explain(watch->arg, text, sizeof text);
    xep_log(XEP_LOG_WARN, "%s, after %.1f s: %s", why, (double)(now_ns - watch->begin_ns) / 1e9, text);
}

void xep_watch_poll(xep_watch_t *watch, uint64_t now_ns)
{
    if (watch->begin_ns == 0) watch->begin_ns = now_ns;
    if (xep_watch_is_asked(watch)) {
        watch->answered = atomic_load(&xep_watch_questions);
        tell(watch, "asked what it waits for", now_ns);
    }
    if (watch->warned || watch->deadline_ns == UINT64_MAX || now_ns >= watch->deadline_ns) return;
    if (now_ns - watch->begin_ns <= watch->deadline_ns - now_ns) return;
    watch->warned = 1;
    tell(watch, "half of the deadline has passed", now_ns);
}

void xep_watch_outside(const char *text)
{
    atomic_store(&outside, text);
}
