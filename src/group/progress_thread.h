/* SPDX-License-Identifier: BSD-3-Clause */

/** A thread that makes progress of a group until it is stopped: XEP_PROGRESS=thread. */
#ifndef XEP_GROUP_PROGRESS_THREAD_H
#define XEP_GROUP_PROGRESS_THREAD_H

#include "group.h"

xep_status_t xep_progress_start(xep_group_t *group, xep_progress_thread_t **thread_p);
void xep_progress_stop(xep_progress_thread_t *thread);

#endif
