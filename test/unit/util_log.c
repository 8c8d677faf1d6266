/* SPDX-License-Identifier: BSD-3-Clause */

/** Unit test of src/util/log.c: levels, the caller's sink, the line on stderr. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "log.h"
#include "unit.h"

typedef struct seen {
    int count;
    xep_log_level_t level;
    char message[4096];
} seen_t;

static void see(void *arg, xep_log_level_t level, const char *message)
{
    seen_t *seen = arg;
    seen->count++;
    seen->level = level;
    snprintf(seen->message, sizeof seen->message, "%s", message);
}

void unit_before_each(void)
{
    setenv("XEP_LOG", "info", 1); /* read once a process */
}

TEST(sink_gets_enabled_levels)
{
    seen_t seen = {0};
    xep_log_set(see, &seen);
    xep_log(XEP_LOG_DEBUG, "not enabled");
    assert_int_equal(seen.count, 0);
    xep_log(XEP_LOG_INFO, "rows %d", 7);
    assert_int_equal(seen.count, 1);
    assert_int_equal(seen.level, XEP_LOG_INFO);
    assert_string_equal(seen.message, "rows 7");
    xep_log(XEP_LOG_ERROR, "worse");
    assert_int_equal(seen.count, 2);
    xep_log_set(NULL, NULL);
}

TEST(enabled_says_so)
{
    assert_true(xep_log_enabled(XEP_LOG_ERROR));
    assert_true(xep_log_enabled(XEP_LOG_INFO));
    assert_false(xep_log_enabled(XEP_LOG_DEBUG));
}

TEST(long_message_is_cut)
{
    char text[4000];
    seen_t seen = {0};
    memset(text, 'y', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    xep_log_set(see, &seen);
    xep_log(XEP_LOG_WARN, "%s", text);
    xep_log_set(NULL, NULL);
    assert_in_range(strlen(seen.message), 1000, sizeof text - 2);
}

/* what log wrote to stderr */
static void captured(char *text, size_t bytes, int rank)
{
    FILE *file = tmpfile();
    int saved = dup(STDERR_FILENO);
    assert_non_null(file);
    assert_true(saved >= 0);
    fflush(stderr);
    dup2(fileno(file), STDERR_FILENO);
    xep_log_rank(rank);
    xep_log(XEP_LOG_WARN, "slow peer %d", 2);
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(file);
    text[fread(text, 1, bytes - 1, file)] = '\0';
    fclose(file);
}

/* "[2026-11-27T01:02:03.456Z host:pid] " before it */
static void check_line(const char *line, const char *message)
{
    char host[64], rest[128] = "";
    int year, month, day, hour, minute, second, ms, pid;
    assert_int_equal(sscanf(line, "[%4d-%2d-%2dT%2d:%2d:%2d.%3dZ %63[^:]:%d] %127[^\n]", &year, &month, &day, &hour,
                            &minute, &second, &ms, host, &pid, rest),
                     10);
    assert_int_equal(pid, getpid());
    assert_string_equal(rest, message);
}

TEST(stderr_line_tells_time_host_process_and_rank)
{
    char text[256];
    captured(text, sizeof text, 5);
    check_line(text, "xep: rank 5: warning: slow peer 2");
    captured(text, sizeof text, -1);
    check_line(text, "xep: warning: slow peer 2");
}
