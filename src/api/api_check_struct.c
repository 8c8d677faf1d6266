/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A caller may be older than the library (its struct is shorter: the rest is 0, the default) or newer (longer: what it
 * has beyond must be 0, as the library would not do what it asks for).
 */
#include "api_check.h"

#include <string.h>

#include "error.h"

enum { MAX_STRUCT = 65536 };

/* All structs begin with a size_t and are aligned to it: no version of one has ended in the middle of a word. */
static int is_struct_size(size_t size)
{
    return size >= sizeof size && size <= MAX_STRUCT && size % sizeof size == 0;
}

/* Nothing but size is read before it is known how much there is: user may be the shorter struct of an older caller. */
xep_status_t xep_check_struct(const char *name, const void *user, void *own, size_t own_size)
{
    size_t size;
    if (user == NULL) return xep_fail(XEP_ERR_INVALID, "%s is NULL", name);
    memcpy(&size, user, sizeof size);
    if (!is_struct_size(size))
        return xep_fail(XEP_ERR_INVALID, "invalid %s.size: %zu (what its _INIT macro sets)", name, size);
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
    size_t size;
    if (user == NULL) return xep_fail(XEP_ERR_INVALID, "%s is NULL", name);
    xep_status_t status = xep_check_output(name, user);
    if (status != XEP_OK) return status;
    memcpy(&size, user, sizeof size);
    if (!is_struct_size(size))
        return xep_fail(XEP_ERR_INVALID, "invalid %s.size: %zu (what its _INIT macro sets)", name, size);
    if (size > sizeof size)
        memcpy((char *)user + sizeof size, (const char *)own + sizeof size,
               (size < own_size ? size : own_size) - sizeof size);
    if (size > own_size) memset((char *)user + own_size, 0, size - own_size);
    return XEP_OK;
}
