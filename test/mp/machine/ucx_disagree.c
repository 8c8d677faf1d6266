/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 2 3, brief: 3, limit: 60 */

/*
 * Ranks that have different versions of UCX do not understand one another: each says so, before UCX has to find out.
 * libxep calls this program's ucp_get_version().
 */
#define _GNU_SOURCE /* RTLD_NEXT */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "mp_rig.h"

__attribute__((visibility("default"))) void ucp_get_version(unsigned *major_p, unsigned *minor_p, unsigned *release_p);

static unsigned added, calls;

void ucp_get_version(unsigned *major_p, unsigned *minor_p, unsigned *release_p)
{
    void (*theirs)(unsigned *, unsigned *, unsigned *) =
        (void (*)(unsigned *, unsigned *, unsigned *))(uintptr_t)dlsym(RTLD_NEXT, "ucp_get_version");
    MP_CHECK(theirs != NULL);
    theirs(major_p, minor_p, release_p);
    *minor_p += added;
    calls++;
}

int main(void)
{
    xep_library_info_t info = XEP_LIBRARY_INFO_INIT;
    xep_group_t *group = NULL;
    const char *rank = getenv("PMIX_RANK");
    unsigned major, minor;
    char mine[64], theirs[64];
    MP_CHECK(rank != NULL);
    MP_OK(xep_library_query(&info));
    MP_CHECK(sscanf(info.ucx_version, "%u.%u", &major, &minor) == 2);
    snprintf(mine, sizeof mine, "%u.%u", major, minor);
    snprintf(theirs, sizeof theirs, "%u.%u", major, minor + 1);

    const int is_other = atoi(rank) == 1;
    added = is_other ? 1 : 0;
    char said[300];
    snprintf(said, sizeof said, "rank %d and this rank have different versions of UCX: %s, %s (all need the same)",
             is_other ? 0 : 1, is_other ? mine : theirs, is_other ? theirs : mine);
    MP_SAYS(XEP_ERR_MISMATCH, said, xep_group_create(NULL, &group));
    MP_CHECK(group == NULL && calls > 0);

    added = 0;
    group = mp_group();
    MP_OK(xep_group_barrier(group));
    return mp_end(group);
}
