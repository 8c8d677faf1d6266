/* SPDX-License-Identifier: BSD-3-Clause */

/** A process that is new in a group that grows: the newcomer's side of group_grow.h. */
#ifndef XEP_ELASTIC_GROUP_JOIN_H
#define XEP_ELASTIC_GROUP_JOIN_H

#include "group.h"
#include "meeting.h"

/** xep_group_join(), arguments checked; timeout_ms is never 0. */
xep_status_t xep_group_come(const xep_config_t *config, const xep_join_params_t *params, const xep_meeting_t *meeting,
                            int32_t timeout_ms, xep_transport_open_fn open_transport, xep_group_t **group_p);

#endif
