/* SPDX-License-Identifier: BSD-3-Clause */

/** Waits of a buffer in which ranks that die or stay away are left out. */
#ifndef XEP_ELASTIC_MEMBERS_WAIT_H
#define XEP_ELASTIC_MEMBERS_WAIT_H

#include "buffer.h"
#include "group_wait.h"

/** xep_group_wait(), and where the buffer has members, as long as there is somebody to leave out. */
xep_status_t xep_members_wait(xep_buffer_t *buffer, xep_wait_t *wait);

/**
 * What such a wait does when a rank has died, or its deadline has passed. XEP_OK: there is hope, until *deadline_p; an
 * error: there is nobody to leave out for it.
 */
xep_status_t xep_members_bury(xep_buffer_t *buffer);
xep_status_t xep_members_doubt(xep_buffer_t *buffer, uint64_t *deadline_p);

#endif
