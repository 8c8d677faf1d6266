/* SPDX-License-Identifier: BSD-3-Clause */

/* What every call asks of the object and of the struct that it is given. */
#include "api_check.h"

#include <string.h>

#include "buffer.h"
#include "error.h"
#include "request.h"

/* ---- objects ---- */

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

/* ---- structs ---- */

/*
 * A caller may be older than the library (its struct is shorter: the rest is 0, the default) or newer (longer: what it
 * has beyond must be 0, as the library would not do what it asks for).
 */
enum { MAX_STRUCT = 65536 };

/* All structs begin with a size_t and are aligned to it: no version of one has ended in the middle of a word. */
static xep_status_t read_size(const char *name, const void *user, size_t *size_p)
{
    if (user == NULL) return xep_fail(XEP_ERR_INVALID, "%s is NULL", name);
    memcpy(size_p, user, sizeof *size_p);
    if (*size_p >= sizeof *size_p && *size_p <= MAX_STRUCT && *size_p % sizeof *size_p == 0) return XEP_OK;
    return xep_fail(XEP_ERR_INVALID, "invalid %s.size: %zu (what its _INIT macro sets)", name, *size_p);
}

/* Nothing but size is read before it is known how much there is: user may be the shorter struct of an older caller. */
xep_status_t xep_check_struct(const char *name, const void *user, void *own, size_t own_size)
{
    size_t size = 0;
    xep_status_t status = read_size(name, user, &size);
    if (status != XEP_OK) return status;
    for (size_t i = own_size; i < size; i++)
        if (((const unsigned char *)user)[i] != 0)
            return xep_fail(XEP_ERR_INVALID, "unknown field in %s: byte %zu is set (%zu bytes are known)", name, i,
                            own_size);
    memset(own, 0, own_size);
    memcpy(own, user, size < own_size ? size : own_size);
    return XEP_OK;
}

/* The caller's size stays as it is, and a field that this library does not know becomes 0. */
xep_status_t xep_fill_struct(const char *name, void *user, const void *own, size_t own_size)
{
    size_t size = 0;
    xep_status_t status = xep_check_output(name, user);
    if (status == XEP_OK) status = read_size(name, user, &size);
    if (status != XEP_OK) return status;
    if (size > sizeof size)
        memcpy((char *)user + sizeof size, (const char *)own + sizeof size,
               (size < own_size ? size : own_size) - sizeof size);
    if (size > own_size) memset((char *)user + own_size, 0, size - own_size);
    return XEP_OK;
}
