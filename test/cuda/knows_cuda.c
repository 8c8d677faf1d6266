/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Preloaded: a UCX that says it knows the memory of CUDA devices, where the stand-in's is memory of the host. What is
 * said to be device memory is registered and put as what it is.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <ucp/api/ucp.h>

#define SEEN __attribute__((visibility("default")))
#define REAL(_name) __typeof__(_name) *real = (__typeof__(_name) *)dlsym(RTLD_NEXT, #_name)

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

SEEN ucs_status_ptr_t ucp_put_nbx(ucp_ep_h endpoint, const void *from, size_t bytes, uint64_t to, ucp_rkey_h key,
                             const ucp_request_param_t *param)
{
    REAL(ucp_put_nbx);
    ucp_request_param_t known = *param;
    if ((known.op_attr_mask & UCP_OP_ATTR_FIELD_MEMORY_TYPE) != 0) known.memory_type = UCS_MEMORY_TYPE_HOST;
    return real(endpoint, from, bytes, to, key, &known);
}
