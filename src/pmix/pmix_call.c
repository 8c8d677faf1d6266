/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The record of a call is shared by the caller and a thread of libpmix, and may be given up by the caller: whoever of
 * the two is the last frees it.
 */
#include "pmix_call.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cpu.h"

enum {
    WAKE_NS = 20000000, /* how often a wait looks whether the launcher has told of dead ranks */
    FIND_NS = 500000000 /* and asks whether there are some that it does not tell of; the most that this may take */
};

/* Shared by the caller and a thread of the library: one that is given up is freed when the library calls at last. */
struct xep_pmix_call {
    pthread_mutex_t lock;
    pthread_cond_t cond; /* of the monotonic clock */
    int given_up;
    void *recv; /* the caller's: not to be touched once it is given up */
    size_t bytes;
    xep_pmix_result_t result;
};

xep_pmix_call_t *xep_pmix_call_new(void *recv, size_t bytes)
{
    pthread_condattr_t attr;
    xep_pmix_call_t *call = calloc(1, sizeof *call);
    if (call == NULL) return NULL;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&call->cond, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&call->lock, NULL);
    call->recv = recv;
    call->bytes = bytes;
    return call;
}

static void call_free(xep_pmix_call_t *call)
{
    pthread_cond_destroy(&call->cond);
    pthread_mutex_destroy(&call->lock);
    free(call);
}

/* value is the library's, and gone when this returns */
static size_t take(const xep_pmix_call_t *call, const pmix_value_t *value)
{
    if (value == NULL || value->type != PMIX_BYTE_OBJECT) return SIZE_MAX;
    if (value->data.bo.size == call->bytes && call->bytes > 0) memcpy(call->recv, value->data.bo.bytes, call->bytes);
    return value->data.bo.size;
}

void xep_pmix_call_value(pmix_status_t ret, pmix_value_t *value, void *arg)
{
    xep_pmix_call_t *call = arg;
    pthread_mutex_lock(&call->lock);
    int given_up = call->given_up;
    if (!given_up) {
        call->result = (xep_pmix_result_t){.done = 1, .ret = ret, .bytes = take(call, value)};
        pthread_cond_signal(&call->cond);
    }
    pthread_mutex_unlock(&call->lock);
    if (given_up) call_free(call);
}

void xep_pmix_call_end(pmix_status_t ret, void *arg)
{
    xep_pmix_call_value(ret, NULL, arg);
}

static void sleep_on(xep_pmix_call_t *call)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += WAKE_NS;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_cond_timedwait(&call->cond, &call->lock, &until);
}

/* The caller is asked without the lock: it may wait for a thread that is in a callback of ours. */
static int is_interrupted(xep_pmix_client_t *client, xep_pmix_call_t *call)
{
    pthread_mutex_unlock(&call->lock);
    if (client->boot != NULL && xep_boot_interrupted(client->boot)) client->interrupted = 1;
    pthread_mutex_lock(&call->lock);
    return client->interrupted;
}

/* Without the lock, too: who is missing is found out by calls of PMIx. */
static void look_at_watch(xep_pmix_call_t *call, xep_watch_t *watch)
{
    if (watch->explain == NULL) return;
    pthread_mutex_unlock(&call->lock);
    xep_watch_look(watch, xep_clock_ns());
    pthread_mutex_lock(&call->lock);
}

/* Likewise. What is found ends the wait. */
static void look_for_dead(xep_pmix_client_t *client, xep_pmix_call_t *call, const xep_pmix_wait_t *wait,
                          uint64_t *next_ns_p)
{
    uint64_t now = xep_clock_ns();
    uint32_t none = UINT32_MAX;
    if (wait->find_dead == NULL || now < *next_ns_p) return;
    pthread_mutex_unlock(&call->lock);
    uint32_t dead = wait->find_dead(client, now + FIND_NS);
    if (dead != none) atomic_compare_exchange_strong(&client->dead_rank, &none, dead);
    pthread_mutex_lock(&call->lock);
    *next_ns_p = xep_clock_ns() + FIND_NS;
}

xep_pmix_result_t xep_pmix_call_wait(xep_pmix_client_t *client, xep_pmix_call_t *call, pmix_status_t begun,
                                     const xep_pmix_wait_t *wait)
{
    xep_watch_t watch;
    if (begun != PMIX_SUCCESS) { /* over already, or not begun: no callback follows */
        call_free(call);
        return (xep_pmix_result_t){.done = 1, .ret = begun, .bytes = SIZE_MAX};
    }
    uint64_t find_ns = xep_clock_ns() + FIND_NS;
    xep_watch_begin(&watch, wait->explain, wait->arg, wait->deadline_ns);
    pthread_mutex_lock(&call->lock);
    while (!call->result.done && xep_clock_ns() < wait->deadline_ns && atomic_load(&client->dead_rank) == UINT32_MAX &&
           !is_interrupted(client, call)) {
        sleep_on(call);
        if (!call->result.done) look_at_watch(call, &watch);
        if (!call->result.done) look_for_dead(client, call, wait, &find_ns);
    }
    xep_pmix_result_t result = call->result;
    call->given_up = !result.done;
    pthread_mutex_unlock(&call->lock);
    xep_watch_end(&watch);
    if (result.done) call_free(call);
    return result;
}
