/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Ranks agree on the kinds of shared memory before one of them opens any: a kind that one rank cannot have would be
 * mapped in one direction only. All ranks of a host compute with the same numbers. User ids are not exchanged, as they
 * differ between namespaces: each rank looks at the processes of the others. With two users, every rank finds one that
 * is not its own.
 */
#include "neighbours.h"

#include <string.h>

#include "host.h"

void xep_neighbour_look(xep_transport_t *transport, xep_neighbour_t *mine)
{
    memset(mine, 0, sizeof *mine);
    transport->ops->shared_look(mine->ranks);
    mine->users = xep_host_users();
}

void xep_neighbours_add(xep_neighbours_t *all, uint32_t rank, int32_t pid, const xep_neighbour_t *said)
{
    if (all->count == 0) all->users = said->users;
    all->is_split |= said->users != all->users;
    for (int kind = 0; kind < XEP_SHARED_KINDS; kind++)
        if (all->count == 0 || said->ranks[kind] < all->shared[kind].ranks)
            all->shared[kind] = (xep_shared_least_t){.ranks = said->ranks[kind], .seen_by = rank};
    if (!all->has_stranger && !xep_host_is_own_user(pid)) {
        all->has_stranger = 1;
        all->stranger = rank;
    }
    all->count++;
}
