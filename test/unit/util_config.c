/* SPDX-License-Identifier: BSD-3-Clause */

/** Unit test of src/util/config.c: every parser, its limits, and what is said when a value is wrong. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xep/inspect.h>

#include "config.h"
#include "log.h"
#include "text.h"
#include "unit.h"

extern char **environ;

static int collect(void *arg, const char *name, const char *value, const char *def, const char *help)
{
    const char **found = arg;
    assert_true(strncmp(name, "XEP_", 4) == 0);
    assert_true(strlen(help) > 10);
    assert_non_null(def);
    if (strcmp(name, found[0]) == 0) found[1] = value;
    return 0;
}

static const char *value_shown(const char *name)
{
    const char *found[2] = {name, NULL};
    xep_config_each(collect, found);
    return found[1];
}

/* no variable of the caller's environment may reach a case */
void unit_before_each(void)
{
    for (char **e = environ; *e != NULL;) {
        char name[256];
        size_t length = strcspn(*e, "=");
        if (strncmp(*e, "XEP_", 4) != 0 || length >= sizeof name) {
            e++;
            continue;
        }
        memcpy(name, *e, length);
        name[length] = '\0';
        unsetenv(name);
        e = environ;
    }
}

static void count_message(void *arg, xep_log_level_t level, const char *message)
{
    int *count = arg;
    assert_int_equal(level, XEP_LOG_WARN);
    if (strcmp(message, "unknown variable XEP_TREADS: did you mean XEP_THREADS? (xep_info -c lists all)") == 0)
        count[0]++;
    else if (strcmp(message, "unknown variable XEP_COLOUR (xep_info -c lists all)") == 0) count[0]++;
    else count[1]++;
}

/* runs first: the warning is given once a process */
TEST(unknown_warns_once)
{
    int counts[2] = {0, 0};
    xep_config_t config;
    setenv("XEP_TREADS", "4", 1);
    setenv("XEP_COLOUR", "blue", 1);
    setenv("XEP_LIBRARY", "libxep.so", 1);
    setenv("XEP_UNTESTED", "1", 1);
    setenv("XEP_VLLM", "1", 1);
    setenv("XEP_TEST_RANKS", "4", 1);
    xep_log_set(count_message, counts);
    assert_int_equal(xep_config_read(&config), XEP_OK);
    assert_int_equal(xep_config_read(&config), XEP_OK);
    xep_log_set(NULL, NULL);
    assert_int_equal(counts[0], 2);
    assert_int_equal(counts[1], 0);
}

TEST(defaults)
{
    xep_config_t config;
    assert_int_equal(xep_config_read(&config), XEP_OK);
    assert_int_equal(config.boot, XEP_BOOT_AUTO);
    assert_string_equal(config.mode, "normal");
    assert_string_equal(config.plugin_path, "");
    assert_int_equal(config.map, XEP_MAP_AUTO);
    assert_int_equal(config.inflight, 8 << 20);
    assert_int_equal(config.timeout, 120000);
    assert_int_equal(config.threads, 1);
    assert_string_equal(config.record, "");
    assert_int_equal(config.record_at, 1);
    assert_int_equal(config.log, XEP_LOG_WARN);
}

TEST(empty_is_unset)
{
    xep_config_t config;
    setenv("XEP_MODE", "", 1);
    setenv("XEP_THREADS", "", 1);
    assert_int_equal(xep_config_read(&config), XEP_OK);
    assert_string_equal(config.mode, "normal");
    assert_int_equal(config.threads, 1);
}

TEST(bytes)
{
    static const struct {
        const char *text;
        uint64_t value;
    } good[] = {{"0", 0},
                {"1", 1},
                {"64k", 65536},
                {"64K", 65536},
                {"3kb", 3072},
                {"2MB", 2 << 20},
                {"1g", 1 << 30},
                {"2t", (uint64_t)2 << 40},
                {"inf", UINT64_MAX},
                {"INF", UINT64_MAX},
                {"18446744073709551615", UINT64_MAX},
                {"16777215t", (uint64_t)16777215 << 40}};
    xep_config_t config;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        setenv("XEP_INFLIGHT", good[i].text, 1);
        assert_int_equal(xep_config_read(&config), XEP_OK);
        assert_true(config.inflight == good[i].value);
    }
}

TEST(bytes_or_auto)
{
    xep_config_t config;
    assert_int_equal(setenv("XEP_STREAMING", "Auto", 1), 0);
    assert_int_equal(xep_config_read(&config), XEP_OK);
    assert_true(config.stream == XEP_CONFIG_AUTO);
    assert_int_equal(xep_config_stream(&config), 768 << 10);
    assert_int_equal(setenv("XEP_STREAMING", "3m", 1), 0);
    assert_int_equal(xep_config_read(&config), XEP_OK);
    assert_int_equal(xep_config_stream(&config), 3 << 20);
    assert_int_equal(setenv("XEP_STREAMING", "automatic", 1), 0);
    assert_int_equal(xep_config_read(&config), XEP_ERR_INVALID);
    assert_int_equal(unsetenv("XEP_STREAMING"), 0);
}

TEST(millis)
{
    static const struct {
        const char *text;
        int32_t value;
    } good[] = {{"1", 1000},
                {"250", 250000},
                {"250ms", 250},
                {"3s", 3000},
                {"2m", 120000},
                {"inf", -1},
                {"2147483647ms", INT32_MAX},
                {"2147483s", 2147483000}};
    xep_config_t config;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        setenv("XEP_TIMEOUT", good[i].text, 1);
        assert_int_equal(xep_config_read(&config), XEP_OK);
        assert_int_equal(config.timeout, good[i].value);
    }
    assert_int_equal(setenv("XEP_HEARTBEAT", "3", 1), 0);
    assert_int_equal(xep_config_read(&config), XEP_OK);
    assert_int_equal(config.heartbeat, 3000);
}

TEST(folders)
{
    static const char *const good[] = {"/", "/tmp:/", ":/tmp::"};
    xep_config_t config;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_int_equal(setenv("XEP_PLUGIN_PATH", good[i], 1), 0);
        assert_int_equal(xep_config_read(&config), XEP_OK);
        assert_string_equal(config.plugin_path, good[i]);
    }
}

/* each kind says what it takes */
TEST(allowed)
{
    static const char *const wrong[][3] = {
        {"XEP_TIMEOUT", "5x", "a whole number of seconds, or of units ms, s or m, from 1 ms to 24 days; or inf"},
        {"XEP_INFLIGHT", "8x", "a whole number of bytes, or of units k, m, g or t; or inf"},
        {"XEP_STREAMING", "some", "a whole number of bytes, or of units k, m, g or t; or inf or auto"},
        {"XEP_THREADS", "0", "a whole number, at least 1"},
        {"XEP_NODE_RANKS", "-1", "a whole number"},
        {"XEP_PLUGIN_PATH", "/tmp:/nowhere", "folders that exist, colon-separated"},
        {"XEP_MAP", "always", "one of auto, never"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        xep_config_t config;
        char said[256];
        assert_int_equal(setenv(wrong[i][0], wrong[i][1], 1), 0);
        assert_int_equal(xep_config_read(&config), XEP_ERR_INVALID);
        snprintf(said, sizeof said, "invalid %s: \"%s\" (%s)", wrong[i][0], wrong[i][1], wrong[i][2]);
        assert_string_equal(xep_last_error(), said);
        assert_int_equal(unsetenv(wrong[i][0]), 0);
    }
}

TEST(spelling)
{
    static const struct {
        const char *word, *known;
        unsigned distance;
    } cases[] = {{"THREDS", "THREADS", 1},
                 {"Threads", "THREADS", 0},
                 {"PLUGINS_PATH", "PLUGIN_PATH", 1},
                 {"HARTBEET", "HEARTBEAT", 2},
                 {"LOG_LEVEL", "LOG", 2},
                 {"NUM_THREADS", "THREADS", 2},
                 {"PLUGIN", "PLUGIN_PATH", 2},
                 {"COMPUTE", "PUT", XEP_SPELLING_FAR},
                 {"SIZE", "SIMD", XEP_SPELLING_FAR},
                 {"", "LOG", XEP_SPELLING_FAR}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(xep_spelling_distance(cases[i].word, cases[i].known), cases[i].distance);
}

TEST(choices)
{
    xep_config_t config;
    setenv("XEP_MAP", "Never", 1);
    setenv("XEP_PROGRESS", "thread", 1);
    setenv("XEP_NUMA", "0", 1);
    setenv("XEP_ROOM", "rank", 1);
    setenv("XEP_LOG", "DEBUG", 1);
    assert_int_equal(xep_config_read(&config), XEP_OK);
    assert_int_equal(config.map, XEP_MAP_NEVER);
    assert_int_equal(config.progress, XEP_PROGRESS_THREAD);
    assert_int_equal(config.numa, 0);
    assert_int_equal(config.room, XEP_ROOM_OF_RANK);
    assert_int_equal(config.log, XEP_LOG_DEBUG);
}

/* a wrong value: refused, named with its text, and the caller's struct untouched */
TEST(wrong_values)
{
    static const char *const wrong[][2] = {
        {"XEP_INFLIGHT", "8x"},
        {"XEP_INFLIGHT", "-1"},
        {"XEP_INFLIGHT", "k"},
        {"XEP_INFLIGHT", "8kk"},
        {"XEP_INFLIGHT", " 8"},
        {"XEP_INFLIGHT", "18446744073709551616"},
        {"XEP_INFLIGHT", "16777216t"},
        {"XEP_TIMEOUT", "0"},
        {"XEP_TIMEOUT", "1h"},
        {"XEP_TIMEOUT", "2147484s"},
        {"XEP_TIMEOUT", "2147484"},
        {"XEP_TIMEOUT", "2147483648ms"},
        {"XEP_HEARTBEAT", "0.5"},
        {"XEP_TIMEOUT", "-1"},
        {"XEP_THREADS", "0"},
        {"XEP_RECORD_AT", "0"},
        {"XEP_PLUGIN_PATH", "/nowhere"},
        {"XEP_PLUGIN_PATH", "/etc/passwd"},
        {"XEP_THREADS", "two"},
        {"XEP_THREADS", "4294967296"},
        {"XEP_THREADS", "1 "},
        {"XEP_MAP", "always"},
        {"XEP_BOOT", "mpi"},
        {"XEP_LOG", "loud"},
        {"XEP_NUMA", "2"},
        {"XEP_ROOM", "house"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        xep_config_t config, before;
        char quoted[64];
        memset(&config, 0xa5, sizeof config);
        before = config;
        setenv(wrong[i][0], wrong[i][1], 1);
        assert_int_equal(xep_config_read(&config), XEP_ERR_INVALID);
        assert_memory_equal(&config, &before, sizeof config);
        assert_non_null(strstr(xep_last_error(), wrong[i][0]));
        snprintf(quoted, sizeof quoted, "\"%s\"", wrong[i][1]);
        assert_non_null(strstr(xep_last_error(), quoted));
        unsetenv(wrong[i][0]);
    }
}

TEST(each_shows_value_in_force)
{
    assert_string_equal(value_shown("XEP_TIMEOUT"), "120s");
    setenv("XEP_TIMEOUT", "7s", 1);
    assert_string_equal(value_shown("XEP_TIMEOUT"), "7s");
    assert_null(value_shown("XEP_NO_SUCH"));
}

static int stop_at_second(void *arg, const char *name, const char *value, const char *def, const char *help)
{
    (void)name, (void)value, (void)def, (void)help;
    return ++*(int *)arg == 2;
}

TEST(each_stops)
{
    int visited = 0;
    xep_config_each(stop_at_second, &visited);
    assert_int_equal(visited, 2);
}

TEST(log_level)
{
    assert_int_equal(xep_log_level_asked(), XEP_LOG_WARN);
    setenv("XEP_LOG", "error", 1);
    assert_int_equal(xep_log_level_asked(), XEP_LOG_ERROR);
    setenv("XEP_LOG", "nonsense", 1);
    assert_int_equal(xep_log_level_asked(), XEP_LOG_WARN);
}
