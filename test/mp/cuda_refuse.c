/* SPDX-License-Identifier: BSD-3-Clause */

/* Where a buffer cannot be, the error says what there should be. */
#include "cuda_refuse.h"

#include <pthread.h>
#include <string.h>

#include "cuda_rig.h"
#include "mp_rig.h"

static void cannot_create(xep_group_t *group, const char *mode, xep_status_t status, const char *reason)
{
    xep_buffer_params_t p = mp_small_params();
    xep_buffer_t *buffer = NULL;
    p.mode = mode;
    p.memory = XEP_MEMORY_CUDA;
    MP_FAILS(status, xep_buffer_create(group, &p, &buffer));
    MP_CHECK(buffer == NULL);
    mp_reason(reason, __FILE__, __LINE__);
}

/* A thread has no device until it chooses one. */
static void *without_device(void *group)
{
    cannot_create(group, "normal", XEP_ERR_INVALID, "no CUDA device is current in this thread");
    return NULL;
}

void cuda_refuse_no_device(xep_group_t *group)
{
    pthread_t thread;
    MP_CHECK(pthread_create(&thread, NULL, without_device, group) == 0);
    MP_CHECK(pthread_join(thread, NULL) == 0);
    cannot_create(group, "none", XEP_ERR_PLUGIN, "there is no xep_none_cuda.so in");
}

int cuda_refuse(xep_group_t *group, const char *machine)
{
    if (strcmp(machine, "absent") == 0)
        cannot_create(group, "normal", XEP_ERR_UNSUPPORTED, "there is no driver for CUDA devices here");
    else if (cuda_rig_open(mp_rank()))
        cannot_create(group, "normal", XEP_ERR_UNSUPPORTED, "needs all ranks on one host: rank ");
    xep_group_destroy(group);
    return 0;
}
