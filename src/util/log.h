/* SPDX-License-Identifier: BSD-3-Clause */

/** Messages to the user: levels, a callback, stderr by default. */
#ifndef XEP_UTIL_LOG_H
#define XEP_UTIL_LOG_H

#include <xep/xep.h>

/** The levels as XEP_LOG names them: X(name, level). */
#define XEP_LOG_LEVELS(X)     \
    X("error", XEP_LOG_ERROR) \
    X("warn", XEP_LOG_WARN)   \
    X("info", XEP_LOG_INFO)   \
    X("debug", XEP_LOG_DEBUG)

/** One line, lower case, no newline. */
void xep_log(xep_log_level_t level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** The level XEP_LOG asks for; its default when the value is no level. */
xep_log_level_t xep_log_level_asked(void);

/** Whether a message of this level goes anywhere. */
int xep_log_enabled(xep_log_level_t level);

/** Says which rank's messages these are; -1 (at start): not known. The last group created wins. */
void xep_log_rank(int rank);

#endif
