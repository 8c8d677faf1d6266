/* SPDX-License-Identifier: BSD-3-Clause */

/** The instances of each expert: its owner, and other ranks that serve it (params.replicas, XEP_BALANCE_EVEN). */
#ifndef XEP_BUFFER_INSTANCES_H
#define XEP_BUFFER_INSTANCES_H

#include "plan.h"

/** XEP_ERR_INVALID: replicas or a rule that cannot be. owners are checked. */
xep_status_t xep_instances_check(const xep_buffer_params_t *params, uint32_t nranks);

/** Whether each expert has all ranks. */
static inline int xep_instances_are_whole(const xep_buffer_params_t *params)
{
    return params->balance == XEP_BALANCE_EVEN && params->nreplicas == 0;
}

/** Of checked params. XEP_ERR_NO_MEMORY; free what it made with close. */
xep_status_t xep_instances_open(const xep_buffer_params_t *params, uint32_t nranks, xep_instances_t *instances);
void xep_instances_close(xep_instances_t *instances);

#endif
