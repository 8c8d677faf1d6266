/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Preloaded: a UCX that says it knows the memory of CUDA devices, where the stand-in's is memory of the host. A put of
 * such memory is made some rounds of progress later, and no flush waits for it, as over cuda_ipc: a signal must not
 * leave before it has completed. The first put by a key waits for all that the device has been given, as one may that
 * unmaps what was at that address before.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <ucp/api/ucp.h>

#define SEEN        __attribute__((visibility("default")))
#define REAL(_name) __typeof__(_name) *real = (__typeof__(_name) *)dlsym(RTLD_NEXT, #_name)

enum { MOST = 256, ROUNDS = 5, KEYS = 64 };

typedef struct late_put {
    ucp_ep_h endpoint;
    const void *from;
    size_t bytes;
    uint64_t to;
    ucp_rkey_h key;
    ucp_request_param_t param;
    int rounds;
} late_put_t;

static late_put_t late[MOST];
static int nlate;
static uint64_t request;       /* of all of them: nobody looks into it */
static ucp_rkey_h fresh[KEYS]; /* nothing was put by them yet */

SEEN ucs_status_t ucp_context_query(ucp_context_h context, ucp_context_attr_t *attr)
{
    REAL(ucp_context_query);
    const ucs_status_t status = real(context, attr);
    if ((attr->field_mask & UCP_ATTR_FIELD_MEMORY_TYPES) != 0) attr->memory_types |= UCS_BIT(UCS_MEMORY_TYPE_CUDA);
    return status;
}

SEEN ucs_status_t ucp_mem_map(ucp_context_h context, const ucp_mem_map_params_t *params, ucp_mem_h *memory_p)
{
    REAL(ucp_mem_map);
    ucp_mem_map_params_t known = *params;
    if ((known.field_mask & UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE) != 0) known.memory_type = UCS_MEMORY_TYPE_HOST;
    return real(context, &known, memory_p);
}

SEEN ucs_status_t ucp_ep_rkey_unpack(ucp_ep_h endpoint, const void *buffer, ucp_rkey_h *key_p)
{
    REAL(ucp_ep_rkey_unpack);
    const ucs_status_t status = real(endpoint, buffer, key_p);
    for (int i = 0; status == UCS_OK && i < KEYS; i++) {
        if (fresh[i] != NULL && fresh[i] != *key_p) continue;
        fresh[i] = *key_p;
        return status;
    }
    if (status == UCS_OK) abort();
    return status;
}

SEEN void ucp_rkey_destroy(ucp_rkey_h key)
{
    REAL(ucp_rkey_destroy);
    for (int i = 0; i < KEYS; i++)
        if (fresh[i] == key) fresh[i] = NULL;
    real(key);
}

static void wait_for_device(ucp_rkey_h key)
{
    for (int i = 0; i < KEYS; i++) {
        if (fresh[i] != key) continue;
        void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
        void (*wait)(void) = driver == NULL ? NULL : (void (*)(void))dlsym(driver, "standin_streams_wait_all");
        if (wait != NULL) wait();
        fresh[i] = NULL;
    }
}

SEEN ucs_status_ptr_t ucp_put_nbx(ucp_ep_h endpoint, const void *from, size_t bytes, uint64_t to, ucp_rkey_h key,
                                  const ucp_request_param_t *param)
{
    REAL(ucp_put_nbx);
    if ((param->op_attr_mask & UCP_OP_ATTR_FIELD_MEMORY_TYPE) == 0) return real(endpoint, from, bytes, to, key, param);
    if (nlate == MOST) abort();
    wait_for_device(key);
    late[nlate] = (late_put_t){endpoint, from, bytes, to, key, *param, ROUNDS};
    late[nlate++].param.memory_type = UCS_MEMORY_TYPE_HOST;
    return &request;
}

/* From what it takes the place of there are no requests: that of the put itself comes with its completion. */
SEEN void ucp_request_free(void *ended)
{
    REAL(ucp_request_free);
    if (ended != &request) real(ended);
}

static void make(const late_put_t *put)
{
    REAL(ucp_put_nbx);
    ucs_status_ptr_t made = real(put->endpoint, put->from, put->bytes, put->to, put->key, &put->param);
    if (!UCS_PTR_IS_PTR(made)) put->param.cb.send(&request, UCS_PTR_STATUS(made), put->param.user_data);
}

SEEN unsigned ucp_worker_progress(ucp_worker_h worker)
{
    REAL(ucp_worker_progress);
    unsigned count = real(worker);
    for (int i = 0; i < nlate; i++) {
        if (--late[i].rounds > 0) continue;
        const late_put_t put = late[i];
        for (int k = i--; k + 1 < nlate; k++) late[k] = late[k + 1];
        nlate--;
        count++;
        make(&put);
    }
    return count;
}
