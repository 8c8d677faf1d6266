/* SPDX-License-Identifier: BSD-3-Clause */

/* What memory is free is the least of what the machine and the control group have left, in a copy of their files. */

#include <stdio.h>
#include <string.h>

#include "room.h"
#include "unit.h"

static const char *root;

TEST(nothing_is_known)
{
    root = unit_make_root();
    assert_true(xep_room_free(root) == UINT64_MAX);
}

TEST(machine_alone)
{
    root = unit_make_root();
    unit_write_file("/proc/meminfo", "MemTotal: 900 kB\nMemAvailable:   500 kB\nSwapFree:    100 kB\n");
    assert_int_equal(xep_room_free(root), 600 * 1024);
}

TEST(group_of_version_2)
{
    root = unit_make_root();
    unit_write_file("/proc/meminfo", "MemAvailable:   500 kB\n");
    unit_write_file("/proc/self/cgroup", "0::/job/step\n");
    unit_write_file("/sys/fs/cgroup/job/step/memory.max", "max\n");
    assert_int_equal(xep_room_free(root), 500 * 1024);
    unit_write_file("/sys/fs/cgroup/job/step/memory.max", "100000\n");
    unit_write_file("/sys/fs/cgroup/job/step/memory.current", "90000\n");
    unit_write_file("/sys/fs/cgroup/job/step/memory.stat", "anon 80000\ninactive_file 5000\n");
    assert_int_equal(xep_room_free(root), 15000);
    unit_write_file("/sys/fs/cgroup/job/step/memory.current", "200000\n"); /* above a limit that was lowered */
    assert_int_equal(xep_room_free(root), 0);
}

TEST(groups_that_the_group_is_in)
{
    root = unit_make_root();
    unit_write_file("/proc/meminfo", "MemAvailable:   500 kB\n");
    unit_write_file("/proc/self/cgroup", "0::/job/step/task\n");
    unit_write_file("/sys/fs/cgroup/job/step/task/memory.max", "100000\n");
    unit_write_file("/sys/fs/cgroup/job/step/task/memory.current", "10000\n");
    assert_int_equal(xep_room_free(root), 90000);
    unit_write_file("/sys/fs/cgroup/job/memory.max", "200000\n"); /* of all its steps */
    unit_write_file("/sys/fs/cgroup/job/memory.current", "170000\n");
    unit_write_file("/sys/fs/cgroup/job/memory.stat", "inactive_file 1000\n");
    assert_int_equal(xep_room_free(root), 31000);
    unit_write_file("/sys/fs/cgroup/memory.max", "1000000\n");
    unit_write_file("/sys/fs/cgroup/memory.current", "980000\n");
    assert_int_equal(xep_room_free(root), 20000);
}

/* with vm.overcommit_memory 2 what was promised counts, and is not given twice */
TEST(memory_that_is_promised)
{
    root = unit_make_root();
    unit_write_file("/proc/meminfo", "MemAvailable:   500 kB\nCommitLimit:  300 kB\nCommitted_AS:  100 kB\n");
    assert_int_equal(xep_room_free(root), 500 * 1024);
    unit_write_file("/proc/sys/vm/overcommit_memory", "2\n");
    assert_int_equal(xep_room_free(root), 200 * 1024);
    unit_write_file("/proc/meminfo", "MemAvailable:   500 kB\nCommitLimit:  300 kB\nCommitted_AS:  400 kB\n");
    assert_int_equal(xep_room_free(root), 0);
}

/* a container sees its group as the root, under a path that is not there */
TEST(group_of_version_1_in_a_container)
{
    root = unit_make_root();
    unit_write_file("/proc/meminfo", "MemAvailable:   500 kB\n");
    unit_write_file("/proc/self/cgroup", "5:devices:/\n4:memory:/docker/0123\n0::/\n");
    unit_write_file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "70000\n");
    unit_write_file("/sys/fs/cgroup/memory/memory.usage_in_bytes", "60000\n");
    assert_int_equal(xep_room_free(root), 10000);
}

/* What ranks draw from has a name by which they know whether it is the same; of many limits the least ones count. */
TEST(what_is_drawn_from_has_a_name)
{
    static const int limits[] = {60, 20, 50, 30, 40, 10};
    char folder[128] = "/sys/fs/cgroup", file[256], text[32];
    xep_room_t room, again;
    root = unit_make_root();
    unit_write_file("/proc/meminfo", "MemAvailable:   500 kB\n");
    unit_write_file("/proc/self/cgroup", "0::/a/b/c/d/e/f\n");
    for (int i = 0; i < 6; i++) {
        snprintf(folder + strlen(folder), 8, "/%c", 'a' + i);
        snprintf(file, sizeof file, "%s/memory.max", folder);
        snprintf(text, sizeof text, "%d000\n", limits[i]);
        unit_write_file(file, text);
        snprintf(file, sizeof file, "%s/memory.current", folder);
        unit_write_file(file, "0\n");
    }
    xep_room_see(root, &room);
    xep_room_see(root, &again);
    assert_memory_equal(&room, &again, sizeof room);
    assert_int_equal(room.source[XEP_ROOM_MACHINE].bytes, 500 * 1024);
    assert_true(room.source[XEP_ROOM_MACHINE].id != 0);
    uint64_t sum = 0;
    for (int i = XEP_ROOM_GROUPS; i < XEP_ROOM_SOURCES; i++) {
        sum += room.source[i].bytes;
        assert_true(room.source[i].id != 0);
        for (int j = 0; j < i; j++) assert_true(room.source[i].id != room.source[j].id);
    }
    assert_int_equal(sum, 100000); /* the four least of six */
    assert_int_equal(xep_room_free(root), 10000);
}

TEST(what_cannot_be_there_is_refused)
{
    assert_int_equal(xep_room_check(4096), XEP_OK);
    assert_int_equal(xep_room_check(UINT64_MAX / 2), XEP_ERR_NO_MEMORY);
    assert_non_null(strstr(xep_last_error(), "not enough memory for a buffer of 8.00 EiB"));
}
