/* SPDX-License-Identifier: BSD-3-Clause */
/* How rows reach each rank: "xep_run -n 4 -N 2 ./nodes" makes two nodes of this machine. */
#include <stdio.h>
#include <stdlib.h>
#include <xep/xep.h>

static void check(xep_status_t status)
{
    if (status == XEP_OK) return;
    fprintf(stderr, "%s: %s\n", xep_status_name(status), xep_last_error());
    exit(1);
}

int main(void)
{
    xep_group_info_t group_info = XEP_GROUP_INFO_INIT;
    xep_buffer_info_t buffer_info = XEP_BUFFER_INFO_INIT;
    xep_buffer_params_t shape = XEP_BUFFER_PARAMS_INIT;
    xep_group_t *group;
    xep_buffer_t *buffer;
    check(xep_group_create(NULL, &group));
    check(xep_group_query(group, &group_info));
    shape.experts = 32, shape.topk = 4, shape.hidden = 512, shape.tokens = 64;
    shape.path = XEP_PATH_AUTO; /* XEP_PATH_NODES: a row crosses the network once for each node */
    check(xep_buffer_create(group, &shape, &buffer));
    check(xep_buffer_query(buffer, &buffer_info));
    printf("rank %u of %u is on node %u of %u; rows take the path %s\n", group_info.rank, group_info.nranks,
           group_info.node, group_info.nnodes, buffer_info.path == XEP_PATH_NODES ? "nodes" : "flat");
    for (uint32_t rank = 0; rank < group_info.nranks; rank++) {
        xep_peer_info_t peer = XEP_PEER_INFO_INIT;
        check(xep_group_peer(group, rank, &peer));
        printf("rank %u reaches rank %u: %s\n", group_info.rank, rank, peer.transport);
    }
    xep_buffer_destroy(buffer);
    xep_group_destroy(group);
    return 0;
}
