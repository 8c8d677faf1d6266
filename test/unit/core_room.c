/* SPDX-License-Identifier: BSD-3-Clause */

/* What memory is free is the least of what the machine and the control group have left, in a copy of their files. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "room.h"
#include "unit.h"

static char root[256];

static void make_root(void)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(root, sizeof root, "%.200s/room.XXXXXX", tmp == NULL ? "/tmp" : tmp);
    assert_non_null(mkdtemp(root));
}

/* a file with its folders */
static void write_file(const char *path, const char *text)
{
    char whole[512];
    snprintf(whole, sizeof whole, "%s%s", root, path);
    for (char *slash = whole + strlen(root) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        mkdir(whole, 0700);
        *slash = '/';
    }
    FILE *file = fopen(whole, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

TEST(nothing_is_known)
{
    make_root();
    assert_true(xep_room_free(root) == UINT64_MAX);
}

TEST(machine_alone)
{
    make_root();
    write_file("/proc/meminfo", "MemTotal: 900 kB\nMemAvailable:   500 kB\nSwapFree:    100 kB\n");
    assert_int_equal(xep_room_free(root), 600 * 1024);
}

TEST(group_of_version_2)
{
    make_root();
    write_file("/proc/meminfo", "MemAvailable:   500 kB\n");
    write_file("/proc/self/cgroup", "0::/job/step\n");
    write_file("/sys/fs/cgroup/job/step/memory.max", "max\n");
    assert_int_equal(xep_room_free(root), 500 * 1024);
    write_file("/sys/fs/cgroup/job/step/memory.max", "100000\n");
    write_file("/sys/fs/cgroup/job/step/memory.current", "90000\n");
    write_file("/sys/fs/cgroup/job/step/memory.stat", "anon 80000\ninactive_file 5000\n");
    assert_int_equal(xep_room_free(root), 15000);
    write_file("/sys/fs/cgroup/job/step/memory.current", "200000\n"); /* above a limit that was lowered */
    assert_int_equal(xep_room_free(root), 0);
}

/* a container sees its group as the root, under a path that is not there */
TEST(group_of_version_1_in_a_container)
{
    make_root();
    write_file("/proc/meminfo", "MemAvailable:   500 kB\n");
    write_file("/proc/self/cgroup", "5:devices:/\n4:memory:/docker/0123\n0::/\n");
    write_file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "70000\n");
    write_file("/sys/fs/cgroup/memory/memory.usage_in_bytes", "60000\n");
    assert_int_equal(xep_room_free(root), 10000);
}

TEST(what_cannot_be_there_is_refused)
{
    assert_int_equal(xep_room_check(4096), XEP_OK);
    assert_int_equal(xep_room_check(UINT64_MAX / 2), XEP_ERR_NO_MEMORY);
    assert_non_null(strstr(xep_last_error(), "not enough memory for a buffer of 9223372036854775807 bytes"));
}
