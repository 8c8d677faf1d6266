/* SPDX-License-Identifier: BSD-3-Clause */

/* What ranks of a group that shrinks give to the allgathers of its attempts: those that were given up leave nothing. */

#include <stdlib.h>
#include <string.h>

#include "group_ctl.h"
#include "group_shrink.h"
#include "unit.h"
#include "unit_mirror.h"

enum { LONG_BYTES = 64 * 1024, GIVEN_UP = 15 /* as many as an inbox of 1 MiB has room for */, ATTEMPT = 20 };

/** As group_ctl.c has them in front. */
typedef struct head {
    uint64_t about;
    uint32_t kind, bytes;
} head_t;

static uint64_t about(uint32_t attempt, uint32_t allgather)
{
    return (uint64_t)attempt << 32 | allgather;
}

/* Rank 1 gives so many bytes, each with this value. */
static void give(xep_group_t *group, uint64_t to, uint32_t bytes, int value)
{
    const head_t head = {to, XEP_CTL_SHARE, bytes};
    char *msg = malloc(sizeof head + bytes);
    assert_non_null(msg);
    memcpy(msg, &head, sizeof head);
    memset(msg + sizeof head, value, bytes);
    group->transport->on_ctl(group, 1, msg, sizeof head + bytes);
    free(msg);
}

/* What has not come by now has been dropped. */
static xep_status_t give_up(void *arg)
{
    (void)arg;
    return XEP_ERR_TIMEOUT;
}

static void gather(xep_boot_t *boot, size_t bytes, int value)
{
    char *send = calloc(1, bytes), *recv = calloc(2, bytes), *theirs = recv + bytes;
    assert_true(send != NULL && recv != NULL);
    assert_int_equal(boot->allgather(boot, send, recv, bytes), XEP_OK);
    assert_int_equal(theirs[0], value);
    assert_int_equal(theirs[bytes - 1], value);
    free(recv);
    free(send);
}

TEST(shares_of_attempts_that_were_given_up_take_no_room)
{
    xep_group_t *group = unit_mirror_open_group();
    xep_shrink_t shrink;
    xep_boot_t *boot;
    assert_int_equal(xep_shrink_open(&shrink, group), XEP_OK);
    for (uint32_t attempt = 1; attempt <= GIVEN_UP; attempt++)
        give(group, about(attempt, 1), XEP_CTL_BYTES, (int)attempt);
    shrink.tried = ATTEMPT;
    assert_int_equal(xep_boot_ctl_open(&shrink, -1, give_up, NULL, &boot), XEP_OK);
    give(group, about(ATTEMPT, 1), 8, 'a');
    gather(boot, 8, 'a');
    give(group, about(ATTEMPT, 2), LONG_BYTES, 'b');
    give(group, about(ATTEMPT + 1, 1), 8, 'c'); /* it is ahead, and this rank asks for that later */
    gather(boot, LONG_BYTES, 'b');
    free(boot);
    shrink.tried = ATTEMPT + 1;
    assert_int_equal(xep_boot_ctl_open(&shrink, -1, give_up, NULL, &boot), XEP_OK);
    gather(boot, 8, 'c');
    free(boot);
    xep_shrink_close(&shrink);
    xep_group_abort(group);
    xep_group_destroy(group);
}
