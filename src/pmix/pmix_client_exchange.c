/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * An allgather over PMIx: put under fresh keys, commit, fence, get, fence.
 *
 * The second fence keeps a rank from ending while others still need its data: over several nodes some servers (PRRTE
 * 3.0.14) fetch data only when asked, whatever the first fence has collected, and a get from a rank that has left never
 * returns.
 *
 * Every commit sends all that the rank has ever put, so each exchange costs more than the one before: 8 bytes of 2
 * ranks took 0.3 ms at first, 4 ms after 256 exchanges, 45 ms after 1024 (OpenPMIx 4.2.2). Keys cannot be reused:
 * servers of PMIx 5 then give clients of 4 the old value. An exchange of no bytes puts nothing and stays at 0.06 ms. So
 * this is for what ranks must know before there are connections, and little else.
 */
#include "pmix_client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backoff.h"
#include "error.h"
#include "pmix_call.h"
#include "pmix_life.h"

enum {
    KEY_BYTES = 64,
    VALUE_BYTES = 1048576, /* of one value: one of 8 MB crashes a server of 4.2.2, whose segments have 4 */
    NAME_BYTES = 32,       /* of a rank in a sentence */
    PAUSE_NS = 20000000,   /* between two such questions, or attempts to lock */
    REPORT_NS = 500000000, /* that a launcher may take to report a death */
    ASK_NS = 2000000000    /* that a server may take to answer which rank is missing; most answer at once */
};

static xep_status_t no_memory(void)
{
    return xep_fail(XEP_ERR_NO_MEMORY, "no memory for an exchange over PMIx");
}

/* XEP_OK, or the error to report if a rank is known to be dead or the caller waits no longer */
static xep_status_t check_end(const xep_pmix_client_t *client)
{
    if (client->interrupted) return xep_fail(XEP_ERR_ABORTED, "the exchange over PMIx was interrupted");
    uint32_t dead = atomic_load(&client->dead_rank);
    if (dead == UINT32_MAX) return XEP_OK;
    return xep_fail(XEP_ERR_PEER, "rank %u has died (the launcher or the kernel says so)", dead);
}

/* the key of a value of this exchange, never used twice: a get may return either of two values put under one key */
static void make_key(const xep_pmix_client_t *client, size_t number, char *key)
{
    snprintf(key, KEY_BYTES, "xep.%llu.%zu", (unsigned long long)client->exchanges, number);
}

/* Whether the server has what a rank gave to the exchange under way; without waiting for it. */
static int has_come(xep_pmix_client_t *client, uint32_t rank, uint64_t deadline_ns)
{
    char key[KEY_BYTES];
    make_key(client, 0, key);
    xep_pmix_result_t result = xep_pmix_call_ask(client, rank, key, NULL, 0, deadline_ns);
    /* without an answer it counts as there, so that no rank is named without reason */
    return !result.done || result.ret == PMIX_SUCCESS || result.ret == PMIX_ERR_NOMEM;
}

/* ": rank 3 has not, rank 5 has not", as far as known and as there is room; has a time limit of its own */
static void name_missing(xep_pmix_client_t *client, char *text, size_t bytes)
{
    uint64_t deadline_ns = xep_clock_ns() + ASK_NS;
    const char *before = ":";
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t r = 0; r < client->nranks && used + NAME_BYTES < bytes && xep_clock_ns() < deadline_ns; r++) {
        if (r == client->self.rank || has_come(client, r, deadline_ns)) continue;
        used += (size_t)snprintf(text + used, bytes - used, "%s rank %u has not", before, r);
        before = ",";
    }
}

/*
 * PMIx reports an error: mostly because a rank has died. The launcher says which one, but a little later, and some
 * launchers never; then the kernel may know its process. XEP_OK: no rank is known to be dead.
 */
static xep_status_t find_reason(xep_pmix_client_t *client)
{
    const uint64_t until_ns = xep_clock_ns() + REPORT_NS;
    const struct timespec pause = {0, PAUSE_NS};
    xep_status_t status = check_end(client);
    if (status != XEP_OK) return status;
    do { /* once at least, even if this process has not run all that time */
        nanosleep(&pause, NULL);
        xep_pmix_life_find_dead(client, xep_clock_ns() + ASK_NS);
        status = check_end(client);
    } while (status == XEP_OK && xep_clock_ns() < until_ns);
    return status;
}

/* A rank has left the fence. If it never came to it, it is one of those that have put nothing. */
static xep_status_t tell_who_left(xep_pmix_client_t *client, size_t bytes)
{
    xep_status_t status = find_reason(client);
    if (status != XEP_OK) return status;
    char missing[256] = "";
    if (bytes > 0) name_missing(client, missing, sizeof missing);
    return xep_fail(XEP_ERR_PEER, "a rank ended without taking part in exchange %llu%s",
                    (unsigned long long)client->exchanges, missing);
}

/* A fence, and how many bytes each rank has put before it. */
typedef struct fenced {
    xep_pmix_client_t *client;
    size_t bytes;
} fenced_t;

static void explain_fence(void *arg, char *text, size_t bytes)
{
    const fenced_t *fenced = arg;
    char missing[256] = "";
    if (fenced->bytes > 0) name_missing(fenced->client, missing, sizeof missing);
    snprintf(text, bytes, "exchange %llu over PMIx: not all of %u ranks have come%s",
             (unsigned long long)fenced->client->exchanges, fenced->client->nranks, missing);
}

/* The deadline has passed. */
static xep_status_t fail_late(const xep_pmix_wait_t *wait)
{
    char text[400];
    wait->explain(wait->arg, text, sizeof text);
    return xep_fail(XEP_ERR_TIMEOUT, "%s", text);
}

/*
 * bytes: that each rank has put before. If a fence does not end in time, it is still under way on other ranks: no later
 * exchange can be right.
 */
static xep_status_t fence(xep_pmix_client_t *client, size_t bytes, uint64_t deadline_ns)
{
    fenced_t fenced = {.client = client, .bytes = bytes};
    xep_pmix_wait_t wait = {.deadline_ns = deadline_ns,
                            .explain = explain_fence,
                            .arg = &fenced,
                            .find_dead = xep_pmix_life_find_dead};
    xep_pmix_result_t result = xep_pmix_call_fence(client, &wait);
    xep_status_t status = check_end(client);
    if (!result.done) client->broken = 1;
    if (status != XEP_OK) return status;
    if (result.done && result.ret == PMIX_ERR_NOMEM) return no_memory();
    if (!result.done) return fail_late(&wait);
    if (result.ret == PMIX_SUCCESS || result.ret == PMIX_OPERATION_SUCCEEDED) return XEP_OK;
    if (result.ret == PMIX_ERR_PARTIAL_SUCCESS) return tell_who_left(client, bytes);
    status = find_reason(client);
    if (status != XEP_OK) return status;
    return xep_fail(XEP_ERR_BOOT, "PMIx_Fence: %s", client->api->error_string(result.ret));
}

static size_t value_bytes(size_t bytes, size_t done)
{
    return bytes - done < VALUE_BYTES ? bytes - done : VALUE_BYTES;
}

static void explain_commit(void *arg, char *text, size_t bytes)
{
    const xep_pmix_client_t *client = arg;
    snprintf(text, bytes, "exchange %llu over PMIx: the launcher's server has not answered PMIx_Commit",
             (unsigned long long)client->exchanges);
}

/* XEP_OK with *ret_p. Else the commit was given up, and the others enter a fence to which this rank does not come. */
static xep_status_t commit(xep_pmix_client_t *client, uint64_t deadline_ns, pmix_status_t *ret_p)
{
    xep_pmix_wait_t wait = {.deadline_ns = deadline_ns, .explain = explain_commit, .arg = client};
    xep_pmix_result_t result = xep_pmix_call_commit(client, &wait);
    *ret_p = result.ret;
    if (result.done) return XEP_OK;
    client->broken = 1;
    xep_status_t status = check_end(client);
    return status == XEP_OK ? fail_late(&wait) : status;
}

/* Values of at most a megabyte, each under a key of its own. */
static xep_status_t put(xep_pmix_client_t *client, const void *send, size_t bytes, uint64_t deadline_ns)
{
    pmix_value_t value = {.type = PMIX_BYTE_OBJECT}; /* copied by put */
    pmix_status_t ret = PMIX_SUCCESS;
    for (size_t done = 0; done < bytes && ret == PMIX_SUCCESS; done += VALUE_BYTES) {
        char key[KEY_BYTES];
        make_key(client, done / VALUE_BYTES, key);
        value.data.bo.bytes = (char *)(uintptr_t)send + done;
        value.data.bo.size = value_bytes(bytes, done);
        ret = client->api->put(PMIX_GLOBAL, key, &value);
    }
    /* in the first exchange, so that ranks can look for one another's processes from then on */
    if (ret == PMIX_SUCCESS && client->exchanges == 1) ret = xep_pmix_life_put(client);
    xep_status_t status = ret == PMIX_SUCCESS ? commit(client, deadline_ns, &ret) : XEP_OK;
    if (status != XEP_OK || ret == PMIX_SUCCESS) return status;
    return xep_fail(XEP_ERR_BOOT, "cannot hand %zu bytes to PMIx: %s", bytes, client->api->error_string(ret));
}

/* A value of a rank that is waited for. */
typedef struct fetched {
    const xep_pmix_client_t *client;
    uint32_t rank;
} fetched_t;

static void explain_value(void *arg, char *text, size_t bytes)
{
    const fetched_t *fetched = arg;
    snprintf(text, bytes, "exchange %llu over PMIx: nothing from rank %u",
             (unsigned long long)fetched->client->exchanges, fetched->rank);
}

/* A death is reported before what PMIx says of the value, which is missing because of it. */
static xep_status_t get_value(xep_pmix_client_t *client, uint32_t rank, size_t number, void *recv, size_t bytes,
                              uint64_t deadline_ns)
{
    char key[KEY_BYTES];
    make_key(client, number, key);
    fetched_t fetched = {.client = client, .rank = rank};
    xep_pmix_wait_t wait = {.deadline_ns = deadline_ns, .explain = explain_value, .arg = &fetched};
    xep_pmix_result_t result = xep_pmix_call_get(client, rank, key, recv, bytes, &wait);
    if (result.done && result.ret == PMIX_SUCCESS && result.bytes == bytes) return XEP_OK;
    if (result.done && result.ret == PMIX_ERR_NOMEM) return no_memory();
    xep_status_t status = check_end(client);
    if (status != XEP_OK) return status;
    if (!result.done) return fail_late(&wait);
    if (result.ret == PMIX_SUCCESS && result.bytes != SIZE_MAX)
        return xep_fail(XEP_ERR_MISMATCH, "rank %u gave %zu bytes to an exchange of %zu", rank, result.bytes, bytes);
    status = find_reason(client); /* the server may give up a living rank when another one has died */
    if (status != XEP_OK) return status;
    return xep_fail(XEP_ERR_BOOT, "exchange %llu over PMIx: nothing from rank %u: %s",
                    (unsigned long long)client->exchanges, rank, client->api->error_string(result.ret));
}

static xep_status_t get(xep_pmix_client_t *client, uint32_t rank, char *recv, size_t bytes, uint64_t deadline_ns)
{
    xep_status_t status = XEP_OK;
    for (size_t done = 0; done < bytes && status == XEP_OK; done += VALUE_BYTES)
        status = get_value(client, rank, done / VALUE_BYTES, recv + done, value_bytes(bytes, done), deadline_ns);
    return status;
}

/* This rank's own bytes need no server. */
static xep_status_t get_all(xep_pmix_client_t *client, const void *send, void *recv, size_t bytes, uint64_t deadline_ns)
{
    xep_status_t status = XEP_OK;
    for (uint32_t i = 0; i < client->nranks && status == XEP_OK; i++) {
        char *place = (char *)recv + i * bytes;
        if (i == client->self.rank) memcpy(place, send, bytes);
        else status = get(client, i, place, bytes, deadline_ns);
    }
    return status;
}

/* put, commit, fence, get, fence, as the head of this file says. */
static xep_status_t exchange_bytes(xep_pmix_client_t *client, const void *send, void *recv, size_t bytes,
                                   uint64_t deadline_ns)
{
    xep_status_t status = put(client, send, bytes, deadline_ns);
    if (status == XEP_OK) status = fence(client, bytes, deadline_ns);
    if (status != XEP_OK) return status;
    status = get_all(client, send, recv, bytes, deadline_ns);
    if (status == XEP_OK) return fence(client, bytes, deadline_ns);
    client->broken = 1; /* the others may be in the second fence */
    return status;
}

/* No bytes: a barrier, for which one fence is enough. */
static xep_status_t exchange(xep_pmix_client_t *client, const void *send, void *recv, size_t bytes,
                             uint64_t deadline_ns)
{
    xep_status_t status = check_end(client);
    if (status != XEP_OK) return status;
    if (client->broken)
        return xep_fail(XEP_ERR_BOOT, "an earlier exchange over PMIx was given up, so no other is possible");
    if (client->exchanges == 0) status = xep_pmix_client_mark(client);
    if (status != XEP_OK) return status;
    /* before anything is sent: the number is part of the keys, and the same on all ranks */
    client->exchanges++;
    return bytes > 0 ? exchange_bytes(client, send, recv, bytes, deadline_ns) : fence(client, 0, deadline_ns);
}

/* Tries for PAUSE_NS. */
static int try_lock(pthread_mutex_t *lock)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += PAUSE_NS;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    return pthread_mutex_timedlock(lock, &until) == 0;
}

/*
 * Another group's exchange may have a later deadline than this one. If this rank gives up, the others' exchange fails,
 * too.
 */
static xep_status_t take_turn(xep_pmix_client_t *client, const xep_boot_t *boot, uint64_t deadline_ns)
{
    while (!try_lock(&client->lock)) {
        const int interrupted = xep_boot_interrupted(boot);
        if (!interrupted && xep_clock_ns() < deadline_ns) continue;
        client->broken = 1;
        if (interrupted) return xep_fail(XEP_ERR_ABORTED, "the exchange over PMIx was interrupted");
        return xep_fail(XEP_ERR_TIMEOUT, "another group's exchange over PMIx is still under way (one at a time)");
    }
    return XEP_OK;
}

/* A process has one PMIx: exchanges of several groups take turns. */
xep_status_t xep_pmix_exchange(xep_pmix_client_t *client, const xep_boot_t *boot, const void *send, void *recv,
                               size_t bytes)
{
    /* the deadline counts from here, even while another group's exchange has the lock */
    uint64_t deadline_ns = boot->timeout_ms < 0 ? UINT64_MAX : xep_clock_ns() + (uint64_t)boot->timeout_ms * 1000000;
    xep_status_t status = take_turn(client, boot, deadline_ns);
    if (status != XEP_OK) return status;
    client->boot = boot;
    client->interrupted = 0;
    status = exchange(client, send, recv, bytes, deadline_ns);
    if (status == XEP_ERR_PEER && xep_pmix_life_follow(client)) status = check_end(client);
    if (status != XEP_OK) xep_pmix_life_leave(client);
    client->boot = NULL;
    pthread_mutex_unlock(&client->lock);
    return status;
}
