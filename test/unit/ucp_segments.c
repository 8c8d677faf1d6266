/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * What System V segments a process can have is known without making one: a process that is killed between making and
 * marking it would leave it. The system's answers are given here: linked with --wrap, so that the calls of ucp_shared.c
 * come to this file.
 */
#define _GNU_SOURCE
#include "ucp_shared.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <unistd.h>

#include "unit.h"

enum { PAGES_ALL = 100, PAGES_USED = 40, IDS_MOST = 8 };

static int made;                              /* segments */
static int denied_get, denied_at, denied_ctl; /* errno of each call; 0: as Linux does */
static struct shminfo limits;
static struct shm_info used;
static const xep_ucp_shared_t both = {.opened = {[XEP_SHARED_SYSV] = true, [XEP_SHARED_POSIX] = true}};

int __wrap_shmget(key_t key, size_t bytes, int flags);
void *__wrap_shmat(int id, const void *at, int flags);
int __wrap_shmctl(int id, int what, struct shmid_ds *buffer);

static int refuse(int error)
{
    errno = error;
    return -1;
}

int __wrap_shmget(key_t key, size_t bytes, int flags)
{
    (void)key, (void)flags;
    if (denied_get != 0) return refuse(denied_get);
    made += bytes >= limits.shmmin;
    return bytes >= limits.shmmin ? 7 : refuse(EINVAL);
}

void *__wrap_shmat(int id, const void *at, int flags)
{
    (void)id, (void)at, (void)flags;
    (void)refuse(denied_at != 0 ? denied_at : EINVAL);
    return (void *)-1;
}

int __wrap_shmctl(int id, int what, struct shmid_ds *buffer)
{
    (void)id;
    if (denied_ctl != 0) return refuse(denied_ctl);
    if (what == IPC_INFO) memcpy(buffer, &limits, sizeof limits);
    else if (what == SHM_INFO) memcpy(buffer, &used, sizeof used);
    else return refuse(EINVAL);
    return 0;
}

/* Only System V: there is no folder for the other kind. */
void unit_before_each(void)
{
    setenv("UCX_POSIX_DIR", "/nowhere", 1);
    made = denied_get = denied_at = denied_ctl = 0;
    limits = (struct shminfo){.shmmax = UINT64_C(1) << 40, .shmmin = 1, .shmmni = IDS_MOST, .shmall = PAGES_ALL};
    used = (struct shm_info){.used_ids = IDS_MOST - 1, .shm_tot = PAGES_USED};
}

static xep_status_t check(uint64_t bytes)
{
    return xep_ucp_shared_check(&both, bytes);
}

static void check_refused(uint64_t bytes, int error)
{
    assert_int_equal(check(bytes), XEP_ERR_NO_MEMORY);
    char said[128] = "System V segments: ";
    strcat(said, error == EINVAL ? "too large for one (kernel.shmmax)" : strerror(error));
    if (strstr(xep_last_error(), said) == NULL) fail_msg("\"%s\" is not in: %s", said, xep_last_error());
    assert_int_equal(made, 0);
}

TEST(what_fits_is_granted_and_not_made)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    assert_int_equal(check((PAGES_ALL - PAGES_USED) * page), XEP_OK);
    assert_int_equal(made, 0);
    check_refused((PAGES_ALL - PAGES_USED) * page + 1, ENOSPC); /* a page more */
    used.shm_tot = PAGES_ALL + 1;                               /* the limit was lowered */
    check_refused(1, ENOSPC);
}

/* as many as there is room for, and names for; the room has the name of the namespace */
TEST(how_many_segments_there_can_be)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    xep_shared_room_t rooms[XEP_SHARED_KINDS];
    used.used_ids = IDS_MOST - 3;
    xep_ucp_shared_room(&both, 25 * page, rooms);
    assert_int_equal(rooms[XEP_SHARED_SYSV].heaps, 2);
    assert_int_equal(rooms[XEP_SHARED_SYSV].bytes, (PAGES_ALL - PAGES_USED) * page);
    assert_true(rooms[XEP_SHARED_SYSV].id != 0);
    assert_int_equal(rooms[XEP_SHARED_POSIX].id, 0); /* nowhere */
    xep_ucp_shared_room(&both, page + 1, rooms);
    assert_int_equal(rooms[XEP_SHARED_SYSV].heaps, 3); /* of 30 */
    used.used_ids = IDS_MOST;
    xep_ucp_shared_room(&both, page, rooms);
    assert_int_equal(rooms[XEP_SHARED_SYSV].heaps, 0);
    denied_get = EPERM;
    xep_ucp_shared_room(&both, page, rooms);
    assert_int_equal(rooms[XEP_SHARED_SYSV].id, 0);
    setenv("UCX_POSIX_DIR", "/dev/shm", 1);
    xep_ucp_shared_room(&both, page, rooms);
    assert_true(rooms[XEP_SHARED_POSIX].id != 0);
    assert_true(rooms[XEP_SHARED_POSIX].heaps != 0); /* as many files, at most */
    assert_true(rooms[XEP_SHARED_POSIX].heaps <= rooms[XEP_SHARED_POSIX].bytes / page);
    assert_int_equal(made, 0);
}

TEST(a_segment_longer_than_any_may_be)
{
    limits.shmmax = 10000;
    assert_int_equal(check(10000), XEP_OK);
    check_refused(10001, EINVAL);
}

TEST(more_segments_than_there_may_be)
{
    used.used_ids = IDS_MOST;
    check_refused(1, ENOSPC);
}

TEST(a_call_that_is_denied)
{
    denied_get = EPERM;
    check_refused(1, EPERM);
    denied_get = 0;
    denied_at = ENOSYS;
    check_refused(1, ENOSYS);
    denied_at = 0;
    denied_ctl = EACCES;
    check_refused(1, EACCES);
}

/* 0 of what is not opened, for whatever reason */
TEST(a_kind_that_is_not_opened)
{
    const xep_ucp_shared_t none = {0};
    xep_shared_room_t rooms[XEP_SHARED_KINDS];
    assert_int_equal(check(1), XEP_OK);
    xep_ucp_shared_room(&none, 1, rooms);
    assert_int_equal(rooms[XEP_SHARED_SYSV].heaps, 0);
    assert_int_equal(xep_ucp_shared_check(&none, 1), XEP_ERR_NO_MEMORY);
}

/* what a rank takes to begin: 6 segments, 8 MiB, and one of so much, perhaps */
TEST(ranks_that_can_begin)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), pages = (8 << 20) / page;
    uint64_t ranks[XEP_SHARED_KINDS];
    used = (struct shm_info){0};
    limits.shmmni = 35, limits.shmall = 7 * pages;
    xep_ucp_shared_look(ranks);
    assert_int_equal(ranks[XEP_SHARED_SYSV], 5);
    limits.shmmni = 4096;
    xep_ucp_shared_look(ranks);
    assert_int_equal(ranks[XEP_SHARED_SYSV], 7);
    limits.shmmax = (8 << 20) - 1;
    xep_ucp_shared_look(ranks);
    assert_int_equal(ranks[XEP_SHARED_SYSV], 0);
    assert_int_equal(made, 0);
}

static const char *agree(uint64_t sysv, uint64_t posix, int is_split)
{
    const xep_neighbours_t two = {.count = 2,
                                  .is_split = is_split,
                                  .shared = {[XEP_SHARED_SYSV].ranks = sysv, [XEP_SHARED_POSIX].ranks = posix}};
    return xep_ucp_shared_agree(&two).transports;
}

TEST(what_all_ranks_have_is_opened)
{
    assert_null(agree(2, 2, 0));
    assert_string_equal(agree(2, 1, 0), "posix");
    assert_string_equal(agree(1, 2, 0), "sysv");
    assert_string_equal(agree(2, 2, 1), "posix"); /* several namespaces of users */
    assert_string_equal(agree(1, 2, 1), "posix,sysv");
    assert_string_equal(agree(0, 0, 0), "posix,sysv");
    const xep_neighbours_t others = {.count = 2,
                                     .has_stranger = 1,
                                     .shared = {[XEP_SHARED_SYSV].ranks = 9, [XEP_SHARED_POSIX].ranks = 9}};
    assert_string_equal(xep_ucp_shared_agree(&others).transports, "posix,sysv");
    assert_int_equal(made, 0);
}
