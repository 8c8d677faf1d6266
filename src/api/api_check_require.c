/* SPDX-License-Identifier: BSD-3-Clause */

#include "api_check.h"

#include "buffer.h"
#include "error.h"
#include "handle.h"
#include "request.h"

/* group: that of the object, NULL without an object */
static xep_status_t require(const char *name, const xep_group_t *group)
{
    if (group == NULL) return xep_fail(XEP_ERR_INVALID, "%s is NULL", name);
    if (!xep_group_is_inherited(group)) return XEP_OK;
    return xep_fail(XEP_ERR_INVALID,
                    "invalid %s: this process was forked from the one that made it (create a group of its own here)",
                    name);
}

xep_status_t xep_require_group(const xep_group_t *group)
{
    return require("group", group);
}

xep_status_t xep_require_buffer(const xep_buffer_t *buffer)
{
    return require("buffer", buffer == NULL ? NULL : buffer->group);
}

xep_status_t xep_require_handle(const xep_handle_t *handle)
{
    return require("handle", handle == NULL ? NULL : handle->buffer->group);
}

/*
 * In this order: a handle that was released may have an operation in flight as well, and one whose operation is waited
 * for here has failed when that has.
 */
xep_status_t xep_require_idle(xep_handle_t *handle)
{
    if (handle->state == XEP_HANDLE_FREE || handle->released)
        return xep_fail(XEP_ERR_INVALID, "invalid handle: it was released");
    if (handle->in_flight != NULL) {
        xep_status_t status = xep_request_settle(handle);
        if (status != XEP_OK) return status;
    }
    if (handle->state == XEP_HANDLE_FAILED) return xep_fail(XEP_ERR_INVALID, "invalid handle: its dispatch failed");
    return XEP_OK;
}

xep_status_t xep_require_request(const xep_request_t *req)
{
    return require("req", req == NULL ? NULL : req->buffer->group);
}
