/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * libpmix asks on a thread of its own, one question at a time; ranks end on the main thread. Values are copied: only
 * bytes, few and short, which is what a group that grows needs.
 */
#include "run_names.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { NAMES = 64, VALUE_BYTES = 4096 };

typedef struct name {
    int used;
    pmix_proc_t owner;
    pmix_key_t key;
    size_t bytes;
    char value[VALUE_BYTES];
} name_t;

/* of the one job that this process has */
static struct {
    pthread_mutex_t lock;
    name_t names[NAMES];
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* With the lock held, as find_free() and keep(). */
static name_t *find(const char *key)
{
    for (size_t i = 0; i < NAMES; i++)
        if (kept.names[i].used && strncmp(kept.names[i].key, key, PMIX_MAX_KEYLEN) == 0) return &kept.names[i];
    return NULL;
}

static name_t *find_free(void)
{
    for (size_t i = 0; i < NAMES; i++)
        if (!kept.names[i].used) return &kept.names[i];
    return NULL;
}

/* What libpmix adds to a question, who asks and for how long, has keys of its own. */
static int is_directive(const pmix_info_t *info)
{
    return strncmp(info->key, "pmix.", 5) == 0;
}

/* A name is published once: publishing it again is an error, even for its owner, and the first value stays. */
static pmix_status_t keep(const pmix_proc_t *proc, const pmix_info_t *info)
{
    const pmix_byte_object_t *bytes = &info->value.data.bo;
    if (info->value.type != PMIX_BYTE_OBJECT || bytes->size > VALUE_BYTES) return PMIX_ERR_NOT_SUPPORTED;
    if (find(info->key) != NULL) return PMIX_ERR_DUPLICATE_KEY;
    name_t *name = find_free();
    if (name == NULL) return PMIX_ERR_OUT_OF_RESOURCE;
    *name = (name_t){.used = 1, .owner = *proc, .bytes = bytes->size};
    snprintf(name->key, sizeof name->key, "%s", info->key);
    memcpy(name->value, bytes->bytes, bytes->size);
    return PMIX_SUCCESS;
}

/* PMIX_OPERATION_SUCCEEDED: all is done when the call returns, and libpmix does not wait for done(). */
static pmix_status_t answer(pmix_status_t status)
{
    return status == PMIX_SUCCESS ? PMIX_OPERATION_SUCCEEDED : status;
}

/* Where one of several values cannot be kept, those before it stay known. */
pmix_status_t run_names_publish(const pmix_proc_t *proc, const pmix_info_t info[], size_t ninfo, pmix_op_cbfunc_t done,
                                void *arg)
{
    pmix_status_t status = PMIX_SUCCESS;
    (void)done, (void)arg;
    pthread_mutex_lock(&kept.lock);
    for (size_t i = 0; i < ninfo && status == PMIX_SUCCESS; i++)
        if (!is_directive(&info[i])) status = keep(proc, &info[i]);
    pthread_mutex_unlock(&kept.lock);
    return answer(status);
}

/* keys NULL: all names of the rank. A rank cannot unpublish another rank's names; an unknown name is no error. */
pmix_status_t run_names_unpublish(const pmix_proc_t *proc, char **keys, const pmix_info_t info[], size_t ninfo,
                                  pmix_op_cbfunc_t done, void *arg)
{
    (void)info, (void)ninfo, (void)done, (void)arg;
    if (keys == NULL) {
        run_names_forget(proc->rank);
        return answer(PMIX_SUCCESS);
    }
    pthread_mutex_lock(&kept.lock);
    for (char **key = keys; *key != NULL; key++) {
        name_t *name = find(*key);
        if (name != NULL && name->owner.rank == proc->rank) name->used = 0;
    }
    pthread_mutex_unlock(&kept.lock);
    return answer(PMIX_SUCCESS);
}

/* libpmix has read data when done() returns. */
pmix_status_t run_names_lookup(const pmix_proc_t *proc, char **keys, const pmix_info_t info[], size_t ninfo,
                               pmix_lookup_cbfunc_t done, void *arg)
{
    static pmix_pdata_t data; /* one at a time, under the lock; too large for libpmix' stack */
    (void)proc, (void)info, (void)ninfo;
    pthread_mutex_lock(&kept.lock);
    name_t *name = keys == NULL || keys[0] == NULL ? NULL : find(keys[0]);
    if (name != NULL) {
        pmix_pdata_t found = {.proc = name->owner,
                              .value = {.type = PMIX_BYTE_OBJECT,
                                        .data.bo = {.bytes = name->value, .size = name->bytes}}};
        memcpy(found.key, name->key, sizeof found.key);
        data = found;
        done(PMIX_SUCCESS, &data, 1, arg);
    }
    pthread_mutex_unlock(&kept.lock);
    if (name == NULL) done(PMIX_ERR_NOT_FOUND, NULL, 0, arg);
    return PMIX_SUCCESS;
}

/* Called by the main thread when a rank has ended, and by libpmix's thread when a rank unpublishes all of its names. */
void run_names_forget(uint32_t rank)
{
    pthread_mutex_lock(&kept.lock);
    for (size_t i = 0; i < NAMES; i++)
        if (kept.names[i].owner.rank == rank) kept.names[i].used = 0;
    pthread_mutex_unlock(&kept.lock);
}
