/* SPDX-License-Identifier: BSD-3-Clause */

/* The mappings of this process: which is shared, how far it goes, in however many pieces the kernel keeps it. */

#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/shm.h>

#include "mapping.h"
#include "unit.h"

enum { PAGE = 4096, PAGES = 8, BYTES = PAGES * PAGE };

static char *map_pages(int flags)
{
    char *pages = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    assert_true(pages != MAP_FAILED);
    return pages;
}

TEST(shared_memory_is_covered)
{
    char *pages = map_pages(MAP_SHARED);
    assert_true(xep_mapping_is_shared(pages, BYTES));
    assert_true(xep_mapping_is_shared(pages + PAGE, PAGE));
    assert_false(xep_mapping_is_shared(pages, 1ull << 40));
    assert_false(xep_mapping_is_shared(pages + PAGE, UINT64_MAX));
    assert_int_equal(mprotect(pages + 2 * PAGE, PAGE, PROT_READ), 0); /* three pieces from now on */
    assert_true(xep_mapping_is_shared(pages, BYTES));
    munmap(pages + 4 * PAGE, PAGE);
    assert_false(xep_mapping_is_shared(pages, BYTES));
    munmap(pages, BYTES);
    assert_false(xep_mapping_is_shared(pages, PAGE));
}

TEST(other_memory_is_not)
{
    char *pages = map_pages(MAP_PRIVATE);
    assert_false(xep_mapping_is_shared(pages, PAGE));
    assert_false(xep_mapping_is_shared(&pages, sizeof pages));
    assert_false(xep_mapping_is_shared((void *)(uintptr_t)PAGE, PAGE));
    munmap(pages, BYTES);
}

TEST(pages_are_counted)
{
    xep_mapping_pages_t pages;
    char *base = map_pages(MAP_SHARED);
    for (int i = 0; i < 3; i++) base[i * PAGE] = 1;
    assert_true(xep_mapping_find_pages(base + 5 * PAGE, &pages));
    assert_int_equal(pages.kilobytes, 4);
    assert_int_equal(pages.present_kilobytes, 3 * 4);
    assert_int_equal(pages.huge_kilobytes, 0);
    munmap(base, BYTES);
    assert_false(xep_mapping_find_pages(base, &pages));
}

TEST(segment_has_its_id)
{
    xep_mapping_t mapping;
    int id = shmget(IPC_PRIVATE, BYTES, IPC_CREAT | 0600);
    if (id < 0) skip();
    char *base = shmat(id, NULL, 0);
    shmctl(id, IPC_RMID, NULL);
    assert_true(base != (void *)-1);
    assert_true(xep_mapping_find(base + PAGE, &mapping));
    assert_int_equal(mapping.inode, id);
    assert_int_equal(mapping.begin, (uintptr_t)base + PAGE);
    assert_int_equal(mapping.offset, PAGE);
    assert_true(xep_mapping_is_segment(&mapping));
    assert_memory_equal(mapping.path, "/SYSV", 5);
    shmdt(base);
    assert_false(xep_mapping_find(base, &mapping));
}
