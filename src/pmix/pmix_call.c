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

enum { WAKE_NS = 20000000 }; /* how often a wait looks for dead ranks */

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

xep_pmix_result_t xep_pmix_call_wait(xep_pmix_client_t *client, xep_pmix_call_t *call, pmix_status_t begun,
                                     uint64_t deadline_ns)
{
    if (begun != PMIX_SUCCESS) { /* over already, or not begun: no callback follows */
        call_free(call);
        return (xep_pmix_result_t){.done = 1, .ret = begun, .bytes = SIZE_MAX};
    }
    pthread_mutex_lock(&call->lock);
    while (!call->result.done && xep_clock_ns() < deadline_ns && atomic_load(&client->dead_rank) == UINT32_MAX &&
           !is_interrupted(client, call))
        sleep_on(call);
    xep_pmix_result_t result = call->result;
    call->given_up = !result.done;
    pthread_mutex_unlock(&call->lock);
    if (result.done) call_free(call);
    return result;
}
