/* SPDX-License-Identifier: BSD-3-Clause */

#include "ext_recent.h"

#include <string.h>

/* -1: it is not here. */
static Py_ssize_t place_of(const ext_recent_t *recent, const struct ext_handle *handle)
{
    for (Py_ssize_t i = recent->count; i-- > 0;)
        if (recent->handles[i] == handle) return i;
    return -1;
}

static struct ext_handle *take_out(ext_recent_t *recent, Py_ssize_t place)
{
    struct ext_handle *found = recent->handles[place];
    recent->count--;
    memmove(recent->handles + place, recent->handles + place + 1,
            sizeof *recent->handles * (size_t)(recent->count - place));
    return found;
}

void ext_recent_add(ext_recent_t *recent, struct ext_handle *handle)
{
    if (recent->count < recent->most && !recent->stays) recent->handles[recent->count++] = handle;
}

void ext_recent_use(ext_recent_t *recent, const struct ext_handle *handle)
{
    const Py_ssize_t place = place_of(recent, handle);
    if (place < 0) return;
    struct ext_handle *used = take_out(recent, place);
    recent->handles[recent->count++] = used;
}

void ext_recent_forget(ext_recent_t *recent, const struct ext_handle *handle)
{
    const Py_ssize_t place = place_of(recent, handle);
    if (place >= 0 && recent->when_full) take_out(recent, place);
    else if (place >= 0) recent->handles[place] = NULL;
}

void ext_recent_remove(ext_recent_t *recent, const struct ext_handle *handle)
{
    const Py_ssize_t place = place_of(recent, handle);
    if (place >= 0) take_out(recent, place);
}

struct ext_handle *ext_recent_oldest(ext_recent_t *recent)
{
    return take_out(recent, 0);
}
