/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * For shared_memory.sh: a rank that is killed while UCX makes shared memory. What it wrote has a name until UCX calls
 * shm_unlink(), which is found here before it is found in the C library.
 */
#include <signal.h>
#include <sys/mman.h>

#include "mp_rig.h"

__attribute__((visibility("default"))) int shm_unlink(const char *name)
{
    (void)name;
    return raise(SIGKILL);
}

int main(void)
{
    return mp_end(mp_group());
}
