/* SPDX-License-Identifier: BSD-3-Clause */

#include "mp_nodes.h"

#include <stdlib.h>

#include "mp_rig.h"

xep_group_t *mp_nodes_group(void)
{
    xep_group_info_t info = XEP_GROUP_INFO_INIT;
    xep_group_t *group; /* how many ranks there are */
    MP_OK(xep_group_create(NULL, &group));
    MP_OK(xep_group_query(group, &info));
    xep_group_destroy(group);
    setenv("XEP_NODE_RANKS", info.nranks == 5 ? "2" : "3", 1);
    setenv("XEP_PART", info.rank % 2 == 0 ? "2k" : "256k", 1);
    group = mp_group();
    MP_OK(xep_group_query(group, &info));
    MP_CHECK(info.nnodes >= (info.nranks == 5 ? 3 : (info.nranks + 2) / 3));
    return info.nnodes == info.nranks ? NULL : group;
}

void mp_nodes_check_masks(xep_group_t *group, const char *mode)
{
    xep_buffer_info_t info = XEP_BUFFER_INFO_INIT;
    xep_buffer_params_t p = mp_small_params();
    xep_buffer_t *buffer;
    p.mode = mode;
    p.path = XEP_PATH_NODES;
    p.pass_rows = 1;
    p.on_failure = XEP_ON_FAILURE_MASK;
    MP_OK(xep_buffer_create(group, &p, &buffer));
    MP_OK(xep_buffer_query(buffer, &info));
    MP_CHECK(info.path == XEP_PATH_FLAT && info.pass_rows == 0);
    xep_buffer_destroy(buffer);
}
