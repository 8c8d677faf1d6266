/* SPDX-License-Identifier: BSD-3-Clause */

/** A bootstrap for a joiner: by what rank 0 of the group that it joins tells it. */
#ifndef XEP_ELASTIC_BOOT_JOIN_H
#define XEP_ELASTIC_BOOT_JOIN_H

#include "boot.h"
#include "frames.h"
#include "rendezvous.h"

/** Of one call of xep_group_join(). */
typedef struct xep_join {
    const xep_config_t *config;
    const xep_join_params_t *params;
    const xep_rendezvous_t *rendezvous;
    xep_transport_open_fn open_transport;
    int32_t timeout_ms;   /* of each wait */
    xep_frames_t *frames; /* with rank 0; NULL: none is known */
    uint32_t rank, nranks;
} xep_join_t;

/** How long the joiner waits, and what ends it: the caller's interrupted. */
xep_patience_t xep_join_patience(xep_join_t *join, uint64_t deadline_ns);

/**
 * The next frame of rank 0, which the caller frees, also after an error; NULL: nothing came. An error also if it is the
 * verdict that there will be no group.
 */
xep_status_t xep_join_hear(xep_join_t *join, xep_frame_kind_t kind, const xep_patience_t *patience,
                           xep_message_t **message_p);

/** join is used until xep_boot_join_end(). */
xep_status_t xep_boot_join_open(xep_join_t *join, int32_t timeout_ms, xep_boot_t **boot_p);
void xep_boot_join_end(xep_boot_t *boot);

#endif
