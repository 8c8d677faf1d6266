/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 4 */

/*
 * Ranks that do not have the same nodes make no group: all are told who says what, and a group can be made again. It is
 * linked with the insides of the library, where what ranks give one another is made wrong.
 */
#define _GNU_SOURCE /* setenv */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "group_exchange.h"
#include "mp_rig.h"

/* What a rank says of the ranks it maps, as group_create.c has it. */
typedef struct reach {
    uint32_t lowest, count;
    uint64_t sum;
} reach_t;

static enum { ALL_RIGHT, MAPS_FEWER, NO_SUCH_RANK } lie;
static uint32_t told; /* how often */

xep_status_t __real_xep_group_exchange(xep_group_t *group, const void *mine, void *all, size_t bytes);
xep_status_t __wrap_xep_group_exchange(xep_group_t *group, const void *mine, void *all, size_t bytes);

xep_status_t __wrap_xep_group_exchange(xep_group_t *group, const void *mine, void *all, size_t bytes)
{
    reach_t reach;
    if (lie == ALL_RIGHT || bytes != sizeof reach) return __real_xep_group_exchange(group, mine, all, bytes);
    memcpy(&reach, mine, sizeof reach);
    if (lie == MAPS_FEWER) {
        reach.count--;
        reach.sum -= 1;
    } else {
        reach.lowest = 77;
    }
    told++;
    return __real_xep_group_exchange(group, &reach, all, bytes);
}

/* The last rank is the odd one; afterwards all is well. */
static void refused(int odd, int odd_lie, xep_status_t status, const char *text)
{
    xep_group_t *group = NULL;
    lie = odd ? odd_lie : ALL_RIGHT;
    MP_SAYS(status, text, xep_group_create(NULL, &group));
    MP_CHECK(group == NULL && told == (lie != ALL_RIGHT));
    lie = ALL_RIGHT;
    told = 0;
    MP_OK(xep_group_create(NULL, &group));
    MP_OK(xep_group_barrier(group));
    xep_group_destroy(group);
}

int main(void)
{
    xep_group_t *group = mp_group(), *none = NULL;
    const int odd = mp_is_last();
    if (mp_group_info(group).nnodes == 1) {
        refused(odd, MAPS_FEWER, XEP_ERR_TRANSPORT,
                "rank 3 maps 3 ranks from rank 0 on, which maps 4 from rank 0 on (all ranks of a machine must map one "
                "another, or none with XEP_MAP=never)");
        setenv("XEP_NODE_RANKS", odd ? "3" : "2", 1);
        MP_SAYS(XEP_ERR_MISMATCH, "rank 3 and rank 0 disagree on XEP_NODE_RANKS: 3, 2", xep_group_create(NULL, &none));
        unsetenv("XEP_NODE_RANKS");
    }
    refused(odd, NO_SUCH_RANK, XEP_ERR_PROTOCOL, "invalid node from rank 3: its lowest rank is 77 (below 4)");
    return mp_end(group);
}
