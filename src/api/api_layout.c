/* SPDX-License-Identifier: BSD-3-Clause */

/* The exported function of layouts: what the user passed is checked, then the core counts, or the mode of a buffer. */
#include "api_check.h"
#include "buffer.h"
#include "layout.h"
#include "owners.h"
#include "staging.h"

/* The indices themselves are checked one by one where they are read. */
static xep_status_t check(xep_layout_args_t *args)
{
    xep_status_t status;
    if (args->reserved != 0) return xep_fail(XEP_ERR_INVALID, "invalid reserved: %u (0)", args->reserved);
    if (args->nranks == 0 || args->nranks > XEP_MOST_RANKS)
        return xep_fail(XEP_ERR_INVALID, "invalid nranks: %u (1 to %d)", args->nranks, XEP_MOST_RANKS);
    if (args->experts == 0) return xep_fail(XEP_ERR_INVALID, "invalid experts: 0 (at least 1)");
    if (args->topk == 0) return xep_fail(XEP_ERR_INVALID, "invalid topk: 0 (at least 1)");
    if (args->owners != NULL && args->buffer != NULL)
        return xep_fail(XEP_ERR_UNSUPPORTED, "owners must be NULL with a buffer in device memory");
    if ((status = xep_owners_check(args->owners, args->experts, args->nranks)) != XEP_OK) return status;
    if (args->tokens > XEP_MOST_TOKENS)
        return xep_fail(XEP_ERR_INVALID, "invalid tokens: %llu (at most %d)", (unsigned long long)args->tokens,
                        XEP_MOST_TOKENS);
    /* without a buffer nothing runs on a device: a stream would be silently ignored, so it is refused */
    if (args->buffer == NULL && args->stream != NULL)
        return xep_fail(XEP_ERR_INVALID, "invalid stream: %p (NULL without a buffer in device memory)", args->stream);
    if (args->ranks_per_node == 0) args->ranks_per_node = args->nranks;
    return xep_check_topk_idx(args->topk_idx, &args->topk_idx_stride, &args->topk_idx_dtype, args->tokens, args->topk);
}

/* The mode of the buffer has the kernel, and its device the memory. */
static xep_status_t lay_on_device(const xep_layout_args_t *args, const xep_layout_t *out)
{
    xep_buffer_t *buffer = args->buffer;
    const xep_plugin_t *plugin = buffer->plugin.plugin;
    xep_status_t status = xep_require_buffer(buffer);
    if (status != XEP_OK) return status;
    if (buffer->device == NULL)
        return xep_fail(XEP_ERR_INVALID, "invalid buffer: it is in host memory (one in device memory, or NULL)");
    if (plugin->layout == NULL && buffer->staging == NULL)
        return xep_fail(XEP_ERR_UNSUPPORTED, "mode %s has no layout in device memory", plugin->name);
    if ((status = xep_buffer_claim(buffer)) != XEP_OK) return status;
    status = xep_buffer_usable(buffer);
    if (status == XEP_OK)
        status =
            buffer->staging != NULL ? xep_staging_layout(buffer, args, out) : plugin->layout(buffer->mode, args, out);
    xep_buffer_leave(buffer);
    return status;
}

/* out is read: it has the caller's arrays in it, and is not written itself. */
xep_status_t xep_layout(const xep_layout_args_t *args, xep_layout_t *out)
{
    xep_layout_args_t own;
    xep_layout_t arrays;
    xep_status_t status = xep_check_struct("args", args, &own, sizeof own);
    if (status == XEP_OK) status = xep_check_struct("out", out, &arrays, sizeof arrays);
    if (status == XEP_OK) status = check(&own);
    if (status == XEP_OK) status = xep_check_layout_memory(&own, &arrays);
    if (status != XEP_OK) return status;
    return own.buffer != NULL ? lay_on_device(&own, &arrays) : xep_layout_compute(&own, &arrays);
}
