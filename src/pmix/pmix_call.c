/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The caller and a thread of libpmix share the record of a call, and the caller may give the call up: the last of the
 * two frees the record. It holds all that libpmix is given, since libpmix may still read that after the call has
 * returned.
 */
#include "pmix_call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backoff.h"
#include "process.h"

enum {
    WAKE_NS = 20000000, /* how often a wait checks whether the launcher has reported dead ranks */
    FIND_NS = 500000000 /* how often it looks for unreported ones itself; also the most time for that */
};

/* Shared by the caller and a thread of the library: if given up, it is freed by the library's callback. */
typedef struct call {
    xep_pmix_client_t *client;
    pmix_proc_t proc;
    pmix_key_t key;
    pmix_info_t info;
    size_t infos; /* 1, or 0: without info */
    int is_get;
    pthread_mutex_t lock;
    pthread_cond_t cond; /* of the monotonic clock */
    int given_up;
    void *recv; /* the caller's: not used once the call is given up */
    size_t bytes;
    xep_pmix_result_t result;
    char *keys[2]; /* key, NULL */
    char sent[];   /* what is published */
} call_t;

/* info: a flag for the call, or NULL; bytes: room for what is sent */
static call_t *call_new_with(xep_pmix_client_t *client, const char *info, size_t room)
{
    call_t *call = calloc(1, sizeof *call + room);
    if (call == NULL) return NULL;
    xep_cond_open(&call->cond);
    pthread_mutex_init(&call->lock, NULL);
    call->client = client;
    /* assigned as a whole: gcc 12 with -O3 takes a pointer to its key for one to no more than the key */
    pmix_info_t directive = {.value = {.type = PMIX_BOOL, .data.flag = true}};
    if (info != NULL) snprintf(directive.key, sizeof directive.key, "%s", info);
    call->info = directive;
    call->infos = info != NULL;
    return call;
}

static call_t *call_new(xep_pmix_client_t *client, const char *info)
{
    return call_new_with(client, info, 0);
}

static void call_free(call_t *call)
{
    pthread_cond_destroy(&call->cond);
    pthread_mutex_destroy(&call->lock);
    free(call);
}

/* value is the library's, and gone when this returns */
static size_t take(const call_t *call, const pmix_value_t *value)
{
    if (value == NULL || (value->type != PMIX_BYTE_OBJECT && value->type != PMIX_UINT32)) return SIZE_MAX;
    const int is_number = value->type == PMIX_UINT32;
    const void *bytes = is_number ? (const void *)&value->data.uint32 : value->data.bo.bytes;
    size_t size = is_number ? sizeof value->data.uint32 : value->data.bo.size;
    if (size == call->bytes && size > 0) memcpy(call->recv, bytes, size);
    return size;
}

/* Called by libpmix. */
static void end_get(pmix_status_t ret, pmix_value_t *value, void *arg)
{
    call_t *call = arg;
    if (call->is_get) atomic_fetch_sub(&call->client->gets, 1);
    pthread_mutex_lock(&call->lock);
    int given_up = call->given_up;
    if (!given_up) {
        call->result = (xep_pmix_result_t){.done = 1, .ret = ret, .bytes = take(call, value)};
        pthread_cond_signal(&call->cond);
    }
    pthread_mutex_unlock(&call->lock);
    if (given_up) call_free(call);
}

static void end_fence(pmix_status_t ret, void *arg)
{
    end_get(ret, NULL, arg);
}

/* ---- calls that take no callback, and wait for the server ---- */

/* For ever, if it is stopped or hangs: so a thread makes them, which the caller may leave behind. */
static pmix_status_t start_thread(call_t *call, void *(*run)(void *arg))
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, call) != 0) return PMIX_ERR_NOMEM;
    pthread_detach(thread);
    return PMIX_SUCCESS;
}

static void *run_init(void *arg)
{
    call_t *call = arg;
    pmix_status_t ret = call->client->api->init(&call->proc, &call->info, call->infos);
    pmix_value_t self = {.type = PMIX_BYTE_OBJECT,
                         .data.bo = {.bytes = (char *)&call->proc, .size = sizeof call->proc}};
    end_get(ret, &self, call);
    return NULL;
}

static void *run_commit(void *arg)
{
    call_t *call = arg;
    xep_pmix_client_t *client = call->client;
    pmix_status_t ret = client->api->commit();
    atomic_fetch_sub(&client->commits, 1);
    end_fence(ret, call);
    return NULL;
}

static void sleep_on(call_t *call)
{
    struct timespec until = xep_clock_at(xep_clock_ns() + WAKE_NS);
    pthread_cond_timedwait(&call->cond, &call->lock, &until);
}

/* Asks the caller without the lock: its function may wait for a thread that is in one of our callbacks. */
static int is_interrupted(xep_pmix_client_t *client, call_t *call)
{
    pthread_mutex_unlock(&call->lock);
    if (client->boot != NULL && xep_boot_interrupted(client->boot)) client->interrupted = 1;
    pthread_mutex_lock(&call->lock);
    return client->interrupted;
}

/* Without the lock, too: PMIx is called to find out who is missing. */
static void look_at_watch(call_t *call, xep_watch_t *watch)
{
    if (watch->explain == NULL) return;
    pthread_mutex_unlock(&call->lock);
    xep_watch_poll(watch, xep_clock_ns());
    pthread_mutex_lock(&call->lock);
}

/* Likewise. A dead rank ends the wait. */
static void look_for_dead(xep_pmix_client_t *client, call_t *call, const xep_pmix_wait_t *wait, uint64_t *next_ns_p)
{
    uint64_t now = xep_clock_ns();
    if (wait->find_dead == NULL || now < *next_ns_p) return;
    pthread_mutex_unlock(&call->lock);
    wait->find_dead(client, now + FIND_NS);
    pthread_mutex_lock(&call->lock);
    *next_ns_p = xep_clock_ns() + FIND_NS;
}

static int is_ended_by_death(const xep_pmix_client_t *client, const xep_pmix_wait_t *wait)
{
    return !wait->goes_on && atomic_load(&client->dead_rank) != UINT32_MAX;
}

/* Waits for a call that returned begun: a callback follows if that is PMIX_SUCCESS. call is gone afterwards. */
static xep_pmix_result_t wait_for(call_t *call, pmix_status_t begun, const xep_pmix_wait_t *wait)
{
    xep_pmix_client_t *client = call->client;
    xep_watch_t watch;
    if (begun != PMIX_SUCCESS) { /* over already, or not begun: no callback follows */
        if (call->is_get) atomic_fetch_sub(&client->gets, 1);
        call_free(call);
        return (xep_pmix_result_t){.done = 1, .ret = begun, .bytes = SIZE_MAX};
    }
    uint64_t find_ns = xep_clock_ns() + FIND_NS;
    xep_watch_begin(&watch, wait->explain, wait->arg, wait->deadline_ns);
    pthread_mutex_lock(&call->lock);
    while (!call->result.done && xep_clock_ns() < wait->deadline_ns && !is_ended_by_death(client, wait) &&
           !is_interrupted(client, call)) {
        sleep_on(call);
        if (!call->result.done) look_at_watch(call, &watch);
        if (!call->result.done) look_for_dead(client, call, wait, &find_ns);
    }
    xep_pmix_result_t result = call->result;
    /* under the lock: from now on end_get() frees the call, and no longer writes to the caller's memory */
    call->given_up = !result.done;
    pthread_mutex_unlock(&call->lock);
    xep_watch_end(&watch);
    if (result.done) call_free(call);
    return result;
}

static const xep_pmix_result_t no_memory = {.done = 1, .ret = PMIX_ERR_NOMEM, .bytes = SIZE_MAX};

/* filled by hand: which functions PMIx's macros call depends on the version of its headers */
xep_pmix_result_t xep_pmix_call_init(xep_pmix_client_t *client, const xep_pmix_wait_t *wait)
{
    const char *prefix = xep_pmix_api_prefix();
    call_t *call = call_new(client, prefix == NULL ? NULL : PMIX_PREFIX);
    if (call == NULL) return no_memory;
    if (prefix != NULL)
        call->info.value = (pmix_value_t){.type = PMIX_STRING, .data.string = (char *)(uintptr_t)prefix};
    call->recv = &client->self;
    call->bytes = sizeof client->self;
    return wait_for(call, start_thread(call, run_init), wait);
}

xep_pmix_result_t xep_pmix_call_fence(xep_pmix_client_t *client, const xep_pmix_wait_t *wait)
{
    /* on Slurm a fence is a barrier across nodes only if it collects data, even if there are none */
    call_t *call = call_new(client, PMIX_COLLECT_DATA);
    if (call == NULL) return no_memory;
    return wait_for(call, client->api->fence_nb(NULL, 0, &call->info, call->infos, end_fence, call), wait);
}

xep_pmix_result_t xep_pmix_call_commit(xep_pmix_client_t *client, const xep_pmix_wait_t *wait)
{
    call_t *call = call_new(client, NULL);
    if (call == NULL) return no_memory;
    atomic_fetch_add(&client->commits, 1);
    pmix_status_t begun = start_thread(call, run_commit);
    if (begun != PMIX_SUCCESS) atomic_fetch_sub(&client->commits, 1);
    return wait_for(call, begun, wait);
}

static xep_pmix_result_t get(call_t *call, uint32_t rank, const char *key, void *recv, size_t bytes,
                             const xep_pmix_wait_t *wait)
{
    if (call == NULL) return no_memory;
    call->proc = call->client->self;
    call->proc.rank = rank;
    snprintf(call->key, sizeof call->key, "%s", key);
    call->is_get = 1;
    call->recv = recv;
    call->bytes = bytes;
    /* before the call: the callback, which subtracts, may run first, on another thread */
    atomic_fetch_add(&call->client->gets, 1);
    return wait_for(call, call->client->api->get_nb(&call->proc, call->key, &call->info, call->infos, end_get, call),
                    wait);
}

xep_pmix_result_t xep_pmix_call_get(xep_pmix_client_t *client, uint32_t rank, const char *key, void *recv, size_t bytes,
                                    const xep_pmix_wait_t *wait)
{
    return get(call_new(client, NULL), rank, key, recv, bytes, wait);
}

xep_pmix_result_t xep_pmix_call_ask(xep_pmix_client_t *client, uint32_t rank, const char *key, void *recv, size_t bytes,
                                    uint64_t deadline_ns)
{
    if (atomic_load(&client->gets) > 0) return (xep_pmix_result_t){0};
    return get(call_new(client, PMIX_IMMEDIATE), rank, key, recv, bytes,
               &(xep_pmix_wait_t){.deadline_ns = deadline_ns});
}

/* ---- names ---- */

/* The list of keys ends with NULL: a new call is all zeros. */
static void name_call(call_t *call, const char *key)
{
    snprintf(call->key, sizeof call->key, "%s", key);
    call->keys[0] = call->key;
}

xep_pmix_result_t xep_pmix_call_publish(xep_pmix_client_t *client, const char *key, const void *data, size_t bytes,
                                        const xep_pmix_wait_t *wait)
{
    call_t *call = call_new_with(client, NULL, bytes);
    if (call == NULL) return no_memory;
    /* a copy: libpmix may still read it when the caller has given up */
    memcpy(call->sent, data, bytes);
    pmix_info_t info = {.value = {.type = PMIX_BYTE_OBJECT, .data.bo = {.bytes = call->sent, .size = bytes}}};
    snprintf(info.key, sizeof info.key, "%s", key);
    call->info = info;
    return wait_for(call, client->api->publish_nb(&call->info, 1, end_fence, call), wait);
}

xep_pmix_result_t xep_pmix_call_unpublish(xep_pmix_client_t *client, const char *key, const xep_pmix_wait_t *wait)
{
    call_t *call = call_new(client, NULL);
    if (call == NULL) return no_memory;
    name_call(call, key);
    return wait_for(call, client->api->unpublish_nb(call->keys, NULL, 0, end_fence, call), wait);
}

/* Called by libpmix; an unknown name may come without a value. */
static void end_lookup(pmix_status_t ret, pmix_pdata_t data[], size_t ndata, void *arg)
{
    int is_there = ndata > 0 && data[0].value.type != PMIX_UNDEF;
    end_get(ret == PMIX_SUCCESS && !is_there ? PMIX_ERR_NOT_FOUND : ret, is_there ? &data[0].value : NULL, arg);
}

xep_pmix_result_t xep_pmix_call_lookup(xep_pmix_client_t *client, const char *key, void *recv, size_t bytes,
                                       const xep_pmix_wait_t *wait)
{
    call_t *call = call_new(client, NULL);
    if (call == NULL) return no_memory;
    name_call(call, key);
    call->recv = recv;
    call->bytes = bytes;
    return wait_for(call, client->api->lookup_nb(call->keys, NULL, 0, end_lookup, call), wait);
}
