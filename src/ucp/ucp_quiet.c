/* SPDX-License-Identifier: BSD-3-Clause */

/* UCX asks its handlers of messages, the last one first, and prints what none of them stops. */
#include "ucp_quiet.h"

#include <pthread.h>
#include <stdbool.h>

#include <ucs/debug/log_def.h>

static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER; /* the list of handlers has no lock */
static _Thread_local bool is_quiet;

static ucs_log_func_rc_t stop(const char *file, unsigned line, const char *function, ucs_log_level_t level,
                              const ucs_log_component_config_t *component, const char *message, va_list args)
{
    (void)file, (void)line, (void)function, (void)level, (void)component, (void)message, (void)args;
    return is_quiet ? UCS_LOG_FUNC_RC_STOP : UCS_LOG_FUNC_RC_CONTINUE;
}

void xep_ucp_quiet_begin(void)
{
    pthread_mutex_lock(&one_at_a_time);
    is_quiet = true;
    ucs_log_push_handler(stop);
}

void xep_ucp_quiet_end(void)
{
    ucs_log_pop_handler();
    is_quiet = false;
    pthread_mutex_unlock(&one_at_a_time);
}
