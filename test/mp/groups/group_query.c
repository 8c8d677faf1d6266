/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 1 4 */

/* What a group knows of its ranks: nodes, who is mapped, how the others are reached; and what it says of itself. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mp_rig.h"

static void peers(xep_group_t *group)
{
    xep_peer_info_t me = XEP_PEER_INFO_INIT;
    uint32_t highest = 0;
    const xep_group_info_t info = mp_group_info(group);
    MP_CHECK(info.rank == mp_rank() && info.nranks == mp_nranks() && info.boot[0] != '\0');
    MP_OK(xep_group_peer(group, info.rank, &me));
    MP_CHECK(me.mapped && me.node == info.node && strcmp(me.transport, "self") == 0);
    for (uint32_t r = 0; r < info.nranks; r++) {
        xep_peer_info_t peer = XEP_PEER_INFO_INIT;
        MP_OK(xep_group_peer(group, r, &peer));
        MP_CHECK(peer.node <= highest + 1 && peer.node < info.nnodes);
        MP_CHECK(peer.mapped == (peer.node == info.node));
        MP_CHECK(r == info.rank || (strcmp(peer.transport, "mapped") == 0) == peer.mapped);
        MP_CHECK(strlen(peer.transport) > 2);
        if (peer.node > highest) highest = peer.node;
    }
    MP_CHECK(highest == info.nnodes - 1);
}

static void drawn_nodes(int mapped)
{
    xep_group_t *group;
    setenv("XEP_NODE_RANKS", "3", 1);
    MP_OK(xep_group_create(NULL, &group));
    const xep_group_info_t info = mp_group_info(group);
    MP_CHECK(info.node >= info.rank / 3 && info.nnodes >= (info.nranks + 2) / 3);
    if (mapped) MP_CHECK(info.node == info.rank / 3);
    peers(group);
    xep_group_destroy(group);
    unsetenv("XEP_NODE_RANKS");
}

static void library(void)
{
    xep_library_info_t info = XEP_LIBRARY_INFO_INIT;
    MP_OK(xep_library_query(&info));
    MP_CHECK(strcmp(info.version, xep_version_string()) == 0);
    MP_CHECK(strchr(info.ucx_version, '.') != NULL && strstr(info.ucx_path, "libucp") != NULL);
    MP_CHECK(strstr(info.library_path, "libxep") != NULL);
}

/* groups come and go in one process */
static void again_and_again(void)
{
    for (int i = 0; i < 5; i++) {
        xep_group_t *group;
        MP_OK(xep_group_create(NULL, &group));
        for (int b = 0; b < 50; b++) MP_OK(xep_group_barrier(group));
        xep_group_destroy(group);
    }
}

int main(void)
{
    xep_group_t *group = mp_group();
    library();
    peers(group);
    again_and_again(); /* beside the first */
    drawn_nodes(mp_group_info(group).nnodes == 1);
    return mp_end(group);
}
