/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * For shared_memory.sh: a buffer of 117 MB a rank for which there is no room. Every rank prints its own sentence, and
 * the group goes on as if nothing had been asked for.
 */
#include <stdio.h>
#include <stdlib.h>

#include "mp_rig.h"

enum { EXIT_NO_ROOM = 3 };

int main(void)
{
    xep_group_t *group = mp_group();
    xep_buffer_params_t params = mp_small_params();
    xep_buffer_t *buffer = NULL;
    params.experts = 8;
    params.topk = 4;
    params.tokens = 64;
    params.hidden = 7168;
    params.slots = 32;
    xep_status_t status = xep_buffer_create(group, &params, &buffer);
    if (status != XEP_OK) {
        fprintf(stderr, "rank %u: %s\n", mp_rank(), xep_last_error());
        MP_CHECK(status == XEP_ERR_NO_MEMORY && buffer == NULL);
    }
    uint32_t mine = mp_rank(), *all = calloc(mp_nranks(), sizeof *all);
    MP_CHECK(all != NULL);
    MP_OK(xep_group_allgather(group, &mine, all, sizeof mine));
    for (uint32_t r = 0; r < mp_nranks(); r++) MP_CHECK(all[r] == r);
    free(all);
    xep_buffer_destroy(buffer);
    xep_group_destroy(group);
    return status == XEP_OK ? 0 : EXIT_NO_ROOM;
}
