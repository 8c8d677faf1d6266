/* SPDX-License-Identifier: BSD-3-Clause */

/** The params of a buffer, told to ranks that have none like it. */
#ifndef XEP_BUFFER_FOLLOW_H
#define XEP_BUFFER_FOLLOW_H

#include "buffer.h"

enum { XEP_FOLLOWED_MODE = 64 };

typedef struct xep_followed {
    xep_buffer_params_t params;   /* mode points behind them */
    char mode[XEP_FOLLOWED_MODE]; /* as they came from another rank: not checked */
} xep_followed_t;

/** Those of the lowest rank with an old buffer, but for what is each rank's own. Collective over group. */
xep_status_t xep_buffer_find_params(const xep_buffer_t *old, xep_group_t *group, xep_followed_t *followed);

#endif
