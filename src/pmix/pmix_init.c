/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Neither call takes a deadline: libpmix waits for ever for a server that is stopped or hangs. So a thread makes them,
 * which is left behind when the caller gives up; its record belongs to the process.
 */
#include "pmix_init.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "error.h"
#include "process.h"
#include "watch.h"

static struct {
    pthread_mutex_t lock;
    pthread_cond_t cond; /* of the monotonic clock */
    int done;
    const xep_pmix_api_t *api;
    xep_pmix_start_t start;
} begun = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* filled by hand: which functions PMIx's macros call depends on the version of its headers */
static pmix_status_t init(pmix_proc_t *self)
{
    const char *prefix = xep_pmix_api_prefix();
    pmix_info_t info;
    if (prefix == NULL) return begun.api->init(self, NULL, 0);
    memset(&info, 0, sizeof info);
    snprintf(info.key, sizeof info.key, "%s", PMIX_PREFIX);
    info.value.type = PMIX_STRING;
    info.value.data.string = (char *)(uintptr_t)prefix;
    return begun.api->init(self, &info, 1);
}

/* Asks the server for the first time, which may hang like PMIx_Init: a wildcard rank asks about the job. */
static pmix_status_t ask_size(const pmix_proc_t *self, uint32_t *nranks_p)
{
    pmix_proc_t job = *self;
    pmix_value_t *value = NULL;
    job.rank = PMIX_RANK_WILDCARD;
    pmix_status_t ret = begun.api->get(&job, PMIX_JOB_SIZE, NULL, 0, &value);
    if (ret != PMIX_SUCCESS) return ret;
    *nranks_p = value->type == PMIX_UINT32 ? value->data.uint32 : 0;
    free(value);
    return ret;
}

/* The result is made on this thread's stack and handed over whole, so that a caller never sees half of it. */
static void *run(void *arg)
{
    xep_pmix_start_t start = {0};
    (void)arg;
    start.init = init(&start.self);
    if (start.init == PMIX_SUCCESS) start.size = ask_size(&start.self, &start.nranks);
    pthread_mutex_lock(&begun.lock);
    begun.start = start;
    begun.done = 1;
    pthread_cond_signal(&begun.cond);
    pthread_mutex_unlock(&begun.lock);
    return NULL;
}

/*
 * Detached: a caller that gives up must not wait for it, and nobody else would. The condition uses the monotonic clock,
 * like all deadlines.
 */
static xep_status_t start_thread(void)
{
    pthread_t thread;
    xep_cond_open(&begun.cond);
    int error = pthread_create(&thread, NULL, run, NULL);
    if (error == 0) pthread_detach(thread);
    return error == 0 ? XEP_OK : xep_fail(XEP_ERR_NO_MEMORY, "no thread for PMIx_Init: %s", strerror(error));
}

/* One deadline for both questions. After it the thread may still write to begun, which is no longer read. */
xep_status_t xep_pmix_init(const xep_pmix_api_t *api, int32_t timeout_ms, xep_pmix_start_t *start_p)
{
    struct timespec end = xep_clock_at(xep_clock_ns() + (timeout_ms < 0 ? 0 : (uint64_t)timeout_ms * 1000000));
    int late = 0;
    begun.api = api;
    xep_status_t status = start_thread();
    if (status != XEP_OK) return status;
    xep_watch_outside("xep: asked what it waits for: PMIx_Init, the answer of the launcher's server\n");
    pthread_mutex_lock(&begun.lock);
    while (!begun.done && late == 0)
        late = timeout_ms < 0 ? pthread_cond_wait(&begun.cond, &begun.lock)
                              : pthread_cond_timedwait(&begun.cond, &begun.lock, &end);
    int done = begun.done;
    *start_p = begun.start;
    pthread_mutex_unlock(&begun.lock);
    xep_watch_outside(NULL);
    return done ? XEP_OK
                : xep_fail(XEP_ERR_TIMEOUT, "the launcher's PMIx server has not answered PMIx_Init within %d ms",
                           timeout_ms);
}
