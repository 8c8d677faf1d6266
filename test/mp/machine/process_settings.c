/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 2, limit: 60 */

/*
 * What a program has chosen for itself is as before when xep has made a group and a buffer: the memory policy of its
 * thread, on a machine with several NUMA nodes, and who may attach its System V segments. libxep calls this program's
 * numa_max_node().
 */
#include <numaif.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/shm.h>

#include "mp_rig.h"

enum { MASK_BITS = 1024, MASK_WORDS = MASK_BITS / (8 * sizeof(unsigned long)), FOR_ALL = 0666 };

__attribute__((visibility("default"))) int numa_max_node(void);

static int asked;

int numa_max_node(void)
{
    asked++;
    return 1;
}

static void check_policy(int expected)
{
    unsigned long nodes[MASK_WORDS] = {0};
    int mode = -1;
    MP_CHECK(get_mempolicy(&mode, nodes, MASK_BITS, NULL, 0) == 0);
    MP_CHECK(mode == expected);
    MP_CHECK(nodes[0] == (expected == MPOL_DEFAULT ? 0 : 1));
}

/* marked to go with its last user, as UCX marks its own */
static int make_segment(void)
{
    int id = shmget(IPC_PRIVATE, 4096, IPC_CREAT | FOR_ALL);
    MP_CHECK(id >= 0 && shmat(id, NULL, 0) != (void *)-1 && shmctl(id, IPC_RMID, NULL) == 0);
    return id;
}

static void check_segment(int id)
{
    struct shmid_ds segment;
    MP_CHECK(shmctl(id, IPC_STAT, &segment) == 0);
    MP_CHECK((segment.shm_perm.mode & 0777) == FOR_ALL);
}

static void check_buffer(xep_group_t *group, int policy)
{
    xep_buffer_params_t params = mp_small_params();
    xep_buffer_t *buffer;
    int segment = make_segment();
    MP_OK(xep_buffer_create(group, &params, &buffer));
    check_segment(segment);
    check_policy(policy);
    xep_buffer_destroy(buffer);
}

int main(void)
{
    unsigned long first[MASK_WORDS] = {1};
    int segment = make_segment();
    xep_group_t *group = mp_group();
    check_segment(segment);
    if (set_mempolicy(MPOL_DEFAULT, NULL, 0) != 0) return mp_skip("no memory policies here");
    check_buffer(group, MPOL_DEFAULT);
    MP_CHECK(set_mempolicy(MPOL_INTERLEAVE, first, MASK_BITS) == 0);
    check_buffer(group, MPOL_INTERLEAVE);
    MP_CHECK(set_mempolicy(MPOL_BIND, first, MASK_BITS) == 0);
    check_buffer(group, MPOL_BIND);
    MP_CHECK(asked > 0);
    return mp_end(group);
}
