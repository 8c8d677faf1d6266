/* SPDX-License-Identifier: BSD-3-Clause */

/** A bootstrap over the mail of another group, for a group of some of its ranks. */
#ifndef XEP_ELASTIC_BOOT_MAIL_H
#define XEP_ELASTIC_BOOT_MAIL_H

#include "boot.h"
#include "shrink_state.h"

/**
 * The ranks that shrink does not suspect now, in order. shrink is used until the group is made; then comes
 * xep_boot_mail_end(). patience: looked at while it waits; an error ends the wait.
 */
xep_status_t xep_boot_mail_open(xep_shrink_t *shrink, int32_t timeout_ms, xep_status_t (*patience)(void *arg),
                                void *arg, xep_boot_t **boot_p);
void xep_boot_mail_end(xep_boot_t *boot);

/** The number in the group of the mail of a rank of the new one. */
uint32_t xep_boot_mail_old(const xep_boot_t *boot, uint32_t rank);

#endif
