/* SPDX-License-Identifier: BSD-3-Clause */

/* Who may become a rank, and what is believed of an address: anybody may write a file, and connect to a port. */

#define _GNU_SOURCE /* mkdtemp */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "boot_join.h"
#include "cpu.h"
#include "newcomers.h"
#include "rest.h"
#include "unit.h"

static char path[] = "/tmp/xep_address.XXXXXX/address";
static char *const end_of_folder = path + sizeof path - sizeof "/address";

void unit_before_each(void)
{
    *end_of_folder = '\0';
    memcpy(end_of_folder - 6, "XXXXXX", 6);
    assert_non_null(mkdtemp(path));
    *end_of_folder = '/';
}

static void clean(void)
{
    (void)unlink(path);
    *end_of_folder = '\0';
    assert_int_equal(rmdir(path), 0); /* nothing else was left there */
    *end_of_folder = '/';
}

static void put_file(const void *data, size_t bytes, mode_t mode)
{
    (void)unlink(path);
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL, mode);
    assert_true(file >= 0);
    assert_int_equal(write(file, data, bytes), bytes);
    assert_int_equal(close(file), 0);
    assert_int_equal(chmod(path, mode), 0);
}

static xep_address_t some_address(void)
{
    xep_address_t address;
    assert_int_equal(xep_address_open(&address), XEP_OK);
    address.port = 4711;
    address.count = 1;
    address.hosts[0] = (xep_address_host_t){.family = 4, .bytes = {127, 0, 0, 1}};
    xep_address_seal(&address);
    return address;
}

static void refuse_file(xep_status_t status, const char *reason)
{
    xep_address_t there;
    memset(&there, 0xa5, sizeof there);
    assert_int_equal(xep_address_read(path, &there), status);
    if (strstr(xep_last_error(), reason) == NULL) fail_msg("\"%s\" does not say \"%s\"", xep_last_error(), reason);
    assert_int_equal(there.magic[0], 0xa5);
}

/* ---- files ---- */

TEST(a_file_comes_back_and_is_the_users_alone)
{
    xep_address_t address = some_address(), there;
    struct stat is;
    mode_t mask = umask(0);
    assert_int_equal(xep_address_write(path, &address), XEP_OK);
    umask(mask);
    assert_int_equal(stat(path, &is), 0);
    assert_int_equal(is.st_mode & 0777, 0600);
    assert_int_equal(xep_address_read(path, &there), XEP_OK);
    assert_memory_equal(&there, &address, sizeof there);
    xep_address_remove(path, &address);
    assert_int_equal(xep_address_read(path, &there), XEP_INPROGRESS);
    clean();
}

TEST(the_file_of_another_group_is_not_removed)
{
    xep_address_t mine = some_address(), other = some_address();
    assert_memory_not_equal(mine.key, other.key, sizeof mine.key);
    assert_int_equal(xep_address_write(path, &mine), XEP_OK);
    assert_int_equal(xep_address_write(path, &other), XEP_OK);
    xep_address_remove(path, &mine);
    assert_int_equal(access(path, F_OK), 0);
    clean();
}

TEST(what_is_no_address_is_refused)
{
    char junk[4096];
    xep_address_t address = some_address();
    memset(junk, 'x', sizeof junk);
    for (size_t bytes = 0; bytes <= sizeof junk; bytes = bytes * 2 + 1) {
        put_file(junk, bytes, 0600);
        refuse_file(XEP_ERR_PROTOCOL, "no address of a group in the address file");
    }
    for (size_t bytes = offsetof(xep_address_t, port); bytes < sizeof address; bytes++) {
        put_file(&address, bytes, 0600);
        refuse_file(XEP_ERR_PROTOCOL, "damaged address in");
    }
    memcpy(junk, &address, sizeof address);
    put_file(junk, sizeof address + 1, 0600);
    refuse_file(XEP_ERR_PROTOCOL, "damaged address in");
    clean();
}

/* Each bit that can be wrong, and numbers that are out of range though the sum is right. */
TEST(damaged_addresses_are_refused)
{
    const xep_address_t good = some_address();
    xep_address_t there;
    for (size_t bit = 0; bit < 8 * sizeof good; bit++) {
        xep_address_t bad = good;
        ((uint8_t *)&bad)[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_true(xep_address_check(&bad, sizeof bad, "it", &there) < 0);
    }
    xep_address_t bad = good;
    bad.count = XEP_ADDRESS_HOSTS + 1;
    xep_address_seal(&bad);
    assert_int_equal(xep_address_check(&bad, sizeof bad, "it", &there), XEP_ERR_PROTOCOL);
    bad = good, bad.port = UINT16_MAX + 1;
    xep_address_seal(&bad);
    assert_int_equal(xep_address_check(&bad, sizeof bad, "it", &there), XEP_ERR_PROTOCOL);
    bad = good, bad.hosts[0].family = 5;
    xep_address_seal(&bad);
    assert_int_equal(xep_address_check(&bad, sizeof bad, "it", &there), XEP_ERR_PROTOCOL);
    bad = good, bad.version++;
    xep_address_seal(&bad);
    assert_int_equal(xep_address_check(&bad, sizeof bad, "it", &there), XEP_ERR_MISMATCH);
    clean();
}

TEST(files_that_others_can_use_are_refused)
{
    xep_address_t address = some_address();
    static const mode_t modes[] = {0640, 0604, 0660, 0620, 0601};
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        put_file(&address, sizeof address, modes[i]);
        refuse_file(XEP_ERR_BOOT, "others may use the address file");
    }
    put_file(&address, sizeof address, 0600);
    if (geteuid() == 0) {
        assert_int_equal(chown(path, 4711, (gid_t)-1), 0);
        refuse_file(XEP_ERR_BOOT, "is of user 4711 (not of this one, 0)");
    }
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    refuse_file(XEP_ERR_BOOT, "cannot read the address file");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    refuse_file(XEP_ERR_BOOT, "is not a file");
    clean();
}

/* ---- who comes ---- */

typedef struct door {
    xep_peer_t peer;
    xep_group_t group;
    xep_grow_args_t args;
    xep_newcomers_t *newcomers;
    xep_address_t address;
} door_t;

static void open_door(door_t *door, uint32_t wanted)
{
    *door = (door_t){.args = XEP_GROW_ARGS_INIT};
    door->group.nranks = 1;
    door->group.peers = &door->peer;
    door->args.newcomers = wanted;
    xep_meeting_t meeting = xep_meeting_by_file(path);
    assert_int_equal(xep_newcomers_open(&door->group, &door->args, &meeting, &door->newcomers), XEP_OK);
    assert_int_equal(xep_address_read(path, &door->address), XEP_OK);
}

static void close_door(door_t *door)
{
    xep_newcomers_close(door->newcomers);
    assert_true(access(path, F_OK) != 0);
    clean();
}

static xep_status_t never(void *arg)
{
    (void)arg;
    return XEP_OK;
}

static xep_patience_t some_time(void)
{
    return (xep_patience_t){.deadline_ns = xep_deadline(10000), .look = never};
}

static int knock(const door_t *door)
{
    int stream = -1;
    xep_patience_t patience = some_time();
    assert_int_equal(xep_stream_connect(&door->address, 0, &patience, &stream), XEP_OK);
    return stream;
}

/* As a newcomer says it. */
static void greet(const door_t *door, int stream, uint32_t version, uint8_t wrong)
{
    xep_frame_t frame = {.kind = XEP_FRAME_HELLO, .bytes = sizeof(xep_hello_t)};
    xep_hello_t hello = {.version = version, .pid = 4711};
    xep_patience_t patience = some_time();
    memcpy(hello.key, door->address.key, sizeof hello.key);
    hello.key[0] ^= wrong;
    assert_int_equal(xep_stream_send(stream, frame, "", &hello, &patience), XEP_OK);
}

/* Until so many are in; or for a while, to see that nobody more comes. */
static uint32_t look(door_t *door, uint32_t count, int32_t ms)
{
    uint64_t until = xep_deadline(ms);
    while (xep_newcomers_look(door->newcomers) != count && xep_clock_ns() < until) usleep(1000);
    return xep_newcomers_look(door->newcomers);
}

static int is_shut(int stream)
{
    xep_frame_t frame;
    uint64_t until = xep_deadline(10000);
    int seen;
    while ((seen = xep_stream_peek(stream, &frame)) == 0 && xep_clock_ns() < until) usleep(1000);
    return seen < 0;
}

TEST(newcomers_are_let_in_and_welcome)
{
    door_t door;
    open_door(&door, 2);
    int first = knock(&door), second = knock(&door);
    xep_join_t join = {.stream = first};
    xep_patience_t patience = some_time();
    xep_frame_t frame;
    uint8_t key[XEP_ADDRESS_KEY / 2];
    greet(&door, first, xep_address_version(), 0);
    assert_int_equal(look(&door, 1, 10000), 1);
    greet(&door, second, xep_address_version(), 0);
    assert_int_equal(look(&door, 2, 10000), 2);
    assert_int_equal(xep_newcomers_welcome(door.newcomers, &patience), XEP_OK);
    assert_true(access(path, F_OK) != 0); /* nobody else is let in */
    xep_join_params_t params = XEP_JOIN_PARAMS_INIT;
    join.params = &params;
    patience = xep_join_patience(&join, xep_deadline(10000));
    assert_int_equal(xep_join_hear(&join, XEP_FRAME_HEARD, &frame, &patience), XEP_OK);
    assert_int_equal(xep_stream_recv(first, key, sizeof key, &patience), XEP_OK);
    assert_memory_equal(key, door.address.key + sizeof key, sizeof key);
    assert_int_equal(xep_join_hear(&join, XEP_FRAME_WELCOME, &frame, &patience), XEP_OK);
    assert_int_equal(frame.rank, 1);
    assert_int_equal(frame.nranks, 3);
    close(first);
    close(second);
    close_door(&door);
}

TEST(strangers_are_not_let_in_and_hold_nobody_up)
{
    door_t door;
    open_door(&door, 1);
    int shy = knock(&door), loud = knock(&door), wrong = knock(&door), good = knock(&door);
    char junk[1000];
    memset(junk, 'x', sizeof junk);
    assert_int_equal(write(loud, junk, sizeof junk), sizeof junk);
    greet(&door, wrong, xep_address_version(), 1);
    assert_int_equal(look(&door, 1, 300), 0);
    assert_true(is_shut(loud) && is_shut(wrong));
    greet(&door, good, xep_address_version(), 0);
    assert_int_equal(look(&door, 1, 10000), 1);
    close(shy);
    close(loud);
    close(wrong);
    close(good);
    close_door(&door);
}

TEST(a_newcomer_of_another_version_is_told)
{
    door_t door;
    open_door(&door, 1);
    int other = knock(&door);
    xep_join_params_t params = XEP_JOIN_PARAMS_INIT;
    xep_join_t join = {.params = &params, .stream = other};
    xep_patience_t patience = xep_join_patience(&join, xep_deadline(10000));
    xep_frame_t frame;
    greet(&door, other, xep_address_version() + 1, 0);
    assert_int_equal(look(&door, 1, 200), 0);
    assert_int_equal(xep_join_hear(&join, XEP_FRAME_HEARD, &frame, &patience), XEP_ERR_MISMATCH);
    assert_non_null(strstr(xep_last_error(), "another version of xep than the group"));
    close(other);
    close_door(&door);
}

TEST(one_that_is_gone_before_all_are_here_leaves_its_place)
{
    door_t door;
    open_door(&door, 2);
    int gone = knock(&door), first = knock(&door), second = knock(&door);
    greet(&door, gone, xep_address_version(), 0);
    assert_int_equal(look(&door, 1, 10000), 1);
    close(gone);
    assert_int_equal(look(&door, 0, 10000), 0);
    greet(&door, first, xep_address_version(), 0);
    greet(&door, second, xep_address_version(), 0);
    assert_int_equal(look(&door, 2, 10000), 2);
    close(first);
    close(second);
    close_door(&door);
}

/* What it gives must be what all give; that it has died or given up is its fault by name. */
TEST(newcomers_are_blamed_by_name)
{
    static const struct {
        xep_frame_t frame;
        xep_status_t status;
        const char *reason;
    } cases[] = {
        {{.kind = XEP_FRAME_GIVE, .number = 2}, XEP_ERR_MISMATCH, "gives other bytes"},
        {{.kind = XEP_FRAME_GIVE, .number = 1, .bytes = 0}, XEP_ERR_MISMATCH, "gives other bytes"},
        {{.kind = XEP_FRAME_SETTLED, .status = XEP_ERR_NO_MEMORY}, XEP_ERR_NO_MEMORY, "no room here"},
        {{.kind = XEP_FRAME_SETTLED, .status = -4711}, XEP_ERR_PEER, "no room here"},
        {{.kind = XEP_FRAME_WELCOME}, XEP_ERR_PROTOCOL, "unexpected message"},
        {{.kind = 99}, XEP_ERR_PROTOCOL, "invalid frame over the connection: magic"},
        {{.kind = 0}, XEP_ERR_PEER, "the connection is gone"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        door_t door;
        char bytes[8];
        if (i != 0) unit_before_each();
        open_door(&door, 1);
        int stream = knock(&door);
        xep_patience_t patience = some_time();
        greet(&door, stream, xep_address_version(), 0);
        assert_int_equal(look(&door, 1, 10000), 1);
        assert_int_equal(xep_newcomers_welcome(door.newcomers, &patience), XEP_OK);
        if (cases[i].frame.kind == 0) close(stream);
        else assert_int_equal(xep_stream_send(stream, cases[i].frame, "no room here", NULL, &patience), XEP_OK);
        assert_int_equal(xep_newcomers_take(door.newcomers, 1, bytes, sizeof bytes, &patience), cases[i].status);
        assert_non_null(strstr(xep_last_error(), "process 4711, which was to be rank 1: "));
        assert_non_null(strstr(xep_last_error(), cases[i].reason));
        if (cases[i].frame.kind != 0) close(stream);
        close_door(&door);
    }
}
