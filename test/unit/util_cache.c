/* SPDX-License-Identifier: BSD-3-Clause */

/* Unit test of src/util/cache.c: last-level caches, in a copy of the files that Linux has of them. */
#include <stdio.h>

#include "cache.h"
#include "unit.h"

static void write_cache(const char *index, const char *size, const char *sharers)
{
    char path[128];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/%s/size", index);
    unit_write_file(path, size);
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/%s/shared_cpu_list", index);
    unit_write_file(path, sharers);
}

TEST(nothing_is_known)
{
    assert_int_equal(xep_cache_bytes(unit_make_root()), 0);
}

TEST(one_for_all)
{
    const char *root = unit_make_root();
    write_cache("index0", "48K\n", "0\n");
    write_cache("index1", "32K\n", "0\n");
    write_cache("index2", "1024K\n", "0\n");
    write_cache("index3", "32768K\n", "0-7\n");
    unit_write_file("/sys/devices/system/cpu/online", "0-7\n");
    assert_int_equal(xep_cache_bytes(root), 32 << 20);
}

/* virtual machines that are shown all of their host's cache */
TEST(more_than_these_processors_may_use)
{
    const char *root = unit_make_root();
    write_cache("index0", "2048K\n", "0\n");
    write_cache("index1", "266240K\n", "0-1\n");
    unit_write_file("/sys/devices/system/cpu/online", "0-1\n");
    assert_int_equal(xep_cache_bytes(root), 12 << 20);
    write_cache("index1", "266240K\n", "0\n"); /* and as much of the other */
    assert_int_equal(xep_cache_bytes(root), 12 << 20);
    write_cache("index1", "266240K\n", "0-15\n");
    assert_int_equal(xep_cache_bytes(root), 96 << 20);
    write_cache("index1", "266240K\n", "0-63\n");
    assert_int_equal(xep_cache_bytes(root), 96 << 20); /* more gain nothing more */
    unit_write_file("/sys/devices/system/cpu/online", "0-127\n");
    assert_int_equal(xep_cache_bytes(root), 2 * (96 << 20));
}

/* two sockets of four, each core with two threads that have numbers far apart */
TEST(several)
{
    const char *root = unit_make_root();
    write_cache("index0", "32K\n", "0,64\n");
    write_cache("index1", "16M\n", "0-7,64-71\n");
    unit_write_file("/sys/devices/system/cpu/online", "0-127\n");
    assert_int_equal(xep_cache_bytes(root), 8 * (16 << 20));
}

/* a container may be given a part of the processors that share a cache */
TEST(a_part_is_online)
{
    const char *root = unit_make_root();
    write_cache("index0", "8192K\n", "0-15\n");
    unit_write_file("/sys/devices/system/cpu/online", "0-3\n");
    assert_int_equal(xep_cache_bytes(root), 8 << 20);
}

TEST(nonsense_counts_for_one)
{
    const char *root = unit_make_root();
    write_cache("index0", "4096K\n", "none\n");
    unit_write_file("/sys/devices/system/cpu/online", "5-2\n");
    assert_int_equal(xep_cache_bytes(root), 4 << 20);
}
