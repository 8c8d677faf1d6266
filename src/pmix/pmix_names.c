/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Not every launcher keeps names: mpirun, prterun and xep_run do, Slurm's PMIx (22.05) does not. Values that ranks put
 * are no substitute: only ranks of their job find them, and they cannot be withdrawn.
 */
#include "pmix_names.h"

#include <stdio.h>
#include <string.h>

#include "backoff.h"
#include "error.h"
#include "pmix_call.h"

enum { MOST_MS = 10000 /* of an answer: the server asks at most one other */ };

static const char instead[] = "an address file, or callbacks, serve as well";

/* Bounded even if the group waits for ever: a joiner's lookup is one of many. */
static uint64_t deadline_of(const xep_rendezvous_t *rendezvous)
{
    int32_t ms = rendezvous->timeout_ms;
    return xep_clock_ns() + (uint64_t)(ms < 0 || ms > MOST_MS ? MOST_MS : ms) * 1000000;
}

static void make_key(const xep_rendezvous_t *rendezvous, char *key, size_t bytes)
{
    snprintf(key, bytes, "xep.grow.%s", rendezvous->name);
}

static int is_refused(pmix_status_t ret)
{
    return ret == PMIX_ERR_NOT_SUPPORTED || ret == PMIX_ERR_NOT_IMPLEMENTED;
}

/* The status of a call: XEP_OK, or why there is no rendezvous under that name. */
static xep_status_t judge(const xep_rendezvous_t *rendezvous, const xep_pmix_client_t *client, const char *call,
                          const xep_pmix_result_t *result)
{
    if (!result->done)
        return xep_fail(XEP_ERR_TIMEOUT, "the launcher's PMIx server has not answered %s of \"%s\" in time", call,
                        rendezvous->name);
    if (result->ret == PMIX_SUCCESS) return XEP_OK;
    if (is_refused(result->ret))
        return xep_fail(XEP_ERR_UNSUPPORTED, "this launcher keeps no names: %s of \"%s\" is not supported (%s)", call,
                        rendezvous->name, instead);
    if (result->ret == PMIX_ERR_DUPLICATE_KEY || result->ret == PMIX_EXISTS)
        return xep_fail(XEP_ERR_BOOT, "the PMIx name \"%s\" is taken: by another group, or by one that has ended",
                        rendezvous->name);
    return xep_fail(XEP_ERR_BOOT, "%s of \"%s\": %s (%s)", call, rendezvous->name,
                    client->api->error_string(result->ret), instead);
}

static xep_status_t open_client(const xep_rendezvous_t *rendezvous, xep_pmix_client_t **client_p)
{
    xep_status_t status = xep_pmix_client_open(rendezvous->timeout_ms, 0, client_p);
    if (status == XEP_OK) return XEP_OK;
    return xep_fail(status, "the PMIx name \"%s\" cannot be used: %.400s (%s)", rendezvous->name, xep_last_error(),
                    instead);
}

static xep_status_t publish(const xep_rendezvous_t *rendezvous, const xep_address_t *address)
{
    char key[sizeof(pmix_key_t)];
    xep_pmix_client_t *client;
    xep_status_t status = open_client(rendezvous, &client);
    if (status != XEP_OK) return status;
    make_key(rendezvous, key, sizeof key);
    xep_pmix_wait_t wait = {.deadline_ns = deadline_of(rendezvous)};
    xep_pmix_result_t result = xep_pmix_call_publish(client, key, address, sizeof *address, &wait);
    return judge(rendezvous, client, "PMIx_Publish", &result);
}

static void unpublish(const xep_rendezvous_t *rendezvous, const xep_address_t *address)
{
    char key[sizeof(pmix_key_t)];
    xep_pmix_client_t *client;
    (void)address;
    if (open_client(rendezvous, &client) != XEP_OK) return;
    make_key(rendezvous, key, sizeof key);
    xep_pmix_wait_t wait = {.deadline_ns = deadline_of(rendezvous)};
    (void)xep_pmix_call_unpublish(client, key, &wait);
}

/* XEP_INPROGRESS: nothing is published under the name so far, and the joiner asks again later. */
static xep_status_t lookup(const xep_rendezvous_t *rendezvous, xep_address_t *address)
{
    char key[sizeof(pmix_key_t)], where[XEP_PMIX_NAME_BYTES + 32];
    xep_address_t data;
    xep_pmix_client_t *client;
    xep_status_t status = open_client(rendezvous, &client);
    if (status != XEP_OK) return status;
    make_key(rendezvous, key, sizeof key);
    xep_pmix_wait_t wait = {.deadline_ns = deadline_of(rendezvous)};
    xep_pmix_result_t result = xep_pmix_call_lookup(client, key, &data, sizeof data, &wait);
    if (result.done && (result.ret == PMIX_ERR_NOT_FOUND || result.ret == PMIX_ERR_PARTIAL_SUCCESS))
        return XEP_INPROGRESS;
    status = judge(rendezvous, client, "PMIx_Lookup", &result);
    if (status != XEP_OK) return status;
    if (result.bytes != sizeof data)
        return xep_fail(XEP_ERR_PROTOCOL, "the PMIx name \"%s\" holds no address: %zd bytes (expected %zu)",
                        rendezvous->name, (ssize_t)result.bytes, sizeof data);
    snprintf(where, sizeof where, "the value of the PMIx name \"%s\"", rendezvous->name);
    return xep_address_check(&data, sizeof data, where, address);
}

static const xep_rendezvous_ops_t ops = {.publish = publish, .unpublish = unpublish, .lookup = lookup};

xep_status_t xep_pmix_rendezvous(const char *path, int32_t timeout_ms, xep_rendezvous_t *rendezvous_p)
{
    const char *name = path + strlen(XEP_PMIX_NAME_PREFIX);
    size_t length = strlen(name);
    if (length == 0 || length >= XEP_PMIX_NAME_BYTES)
        return xep_fail(XEP_ERR_INVALID,
                        "invalid path: a PMIx name of %zu bytes behind \"" XEP_PMIX_NAME_PREFIX "\" (1 to %d)", length,
                        XEP_PMIX_NAME_BYTES - 1);
    *rendezvous_p = (xep_rendezvous_t){.ops = &ops, .kind = "PMIx name", .name = name, .timeout_ms = timeout_ms};
    return XEP_OK;
}
