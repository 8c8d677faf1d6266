/* SPDX-License-Identifier: BSD-3-Clause */

/* Who may become a rank, and what is believed of an address: anybody may write a file, and send to a port. */

#define _GNU_SOURCE /* mkdtemp */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backoff.h"
#include "group_grow.h"
#include "joiners.h"
#include "ucp_transport.h"
#include "unit.h"

enum { IN_TIME_MS = 50000 };

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
    assert_int_equal(xep_address_seal(&address, "where", 5), XEP_OK);
    return address;
}

static xep_status_t write_file(const xep_address_t *address)
{
    const xep_rendezvous_t rendezvous = xep_rendezvous_by_file(path);
    return rendezvous.ops->publish(&rendezvous, address);
}

static void remove_file(const xep_address_t *address)
{
    const xep_rendezvous_t rendezvous = xep_rendezvous_by_file(path);
    rendezvous.ops->unpublish(&rendezvous, address);
}

static xep_status_t read_file(xep_address_t *there)
{
    const xep_rendezvous_t rendezvous = xep_rendezvous_by_file(path);
    return rendezvous.ops->lookup(&rendezvous, there);
}

static void refuse_file(xep_status_t status, const char *reason)
{
    xep_address_t there;
    memset(&there, 0xa5, sizeof there);
    assert_int_equal(read_file(&there), status);
    if (strstr(xep_last_error(), reason) == NULL) fail_msg("\"%s\" does not say \"%s\"", xep_last_error(), reason);
    assert_int_equal(there.magic[0], 0xa5);
}

/* ---- files ---- */

TEST(a_file_comes_back_and_is_the_users_alone)
{
    xep_address_t address = some_address(), there;
    struct stat is;
    mode_t mask = umask(0);
    assert_int_equal(write_file(&address), XEP_OK);
    umask(mask);
    assert_int_equal(stat(path, &is), 0);
    assert_int_equal(is.st_mode & 0777, 0600);
    assert_int_equal(read_file(&there), XEP_OK);
    assert_memory_equal(&there, &address, sizeof there);
    remove_file(&address);
    assert_int_equal(read_file(&there), XEP_INPROGRESS);
    clean();
}

TEST(the_file_of_another_group_is_not_removed)
{
    xep_address_t mine = some_address(), other = some_address();
    assert_memory_not_equal(mine.own_key, other.own_key, sizeof mine.own_key);
    assert_memory_not_equal(mine.own_key, mine.joiners_key, sizeof mine.own_key);
    assert_int_equal(write_file(&mine), XEP_OK);
    assert_int_equal(write_file(&other), XEP_OK);
    remove_file(&mine);
    assert_int_equal(access(path, F_OK), 0);
    clean();
}

TEST(what_is_no_address_is_refused)
{
    char junk[sizeof(xep_address_t) + 1];
    xep_address_t address = some_address();
    memset(junk, 'x', sizeof junk);
    for (size_t bytes = 0; bytes <= sizeof junk; bytes = bytes * 2 + 1) {
        put_file(junk, bytes, 0600);
        refuse_file(XEP_ERR_PROTOCOL, "no address of a group in the address file");
    }
    for (size_t bytes = offsetof(xep_address_t, sum); bytes < sizeof address; bytes += 1 + bytes / 8) {
        put_file(&address, bytes, 0600);
        refuse_file(XEP_ERR_PROTOCOL, "damaged address in");
    }
    memcpy(junk, &address, sizeof address);
    put_file(junk, sizeof address + 1, 0600);
    refuse_file(XEP_ERR_PROTOCOL, "damaged address in");
    clean();
}

/* Each bit that can be wrong, but of many of the zeros at the end. */
TEST(damaged_addresses_are_refused)
{
    const xep_address_t good = some_address();
    xep_address_t there;
    for (size_t bit = 0; bit < 8 * sizeof good; bit += bit < 8 * 300 ? 1 : 7) {
        xep_address_t bad = good;
        ((uint8_t *)&bad)[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_true(xep_address_check(&bad, sizeof bad, "it", &there) < 0);
    }
    static uint8_t longest[sizeof good.transport + 1];
    xep_address_t bad = good;
    assert_int_equal(xep_address_seal(&bad, longest, sizeof longest - 1), XEP_OK);
    assert_int_equal(xep_address_check(&bad, sizeof bad, "it", &there), XEP_OK);
    assert_int_equal(xep_address_seal(&bad, longest, sizeof longest), XEP_ERR_TRANSPORT);
    bad = good, bad.version++;
    assert_int_equal(xep_address_check(&bad, sizeof bad, "it", &there), XEP_ERR_MISMATCH);
    assert_non_null(strstr(xep_last_error(), "another version of xep"));
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

static xep_config_t config;

typedef struct door {
    xep_peer_t peer;
    xep_group_t group;
    xep_grow_args_t args;
    xep_joiners_t *joiners;
    xep_address_t address;
} door_t;

static void open_door(door_t *door, uint32_t wanted)
{
    *door = (door_t){.args = XEP_GROW_ARGS_INIT};
    assert_int_equal(xep_config_read(&config), XEP_OK);
    door->group.config = config;
    door->group.nranks = 1;
    door->group.peers = &door->peer;
    door->args.joiners = wanted;
    xep_rendezvous_t rendezvous = xep_rendezvous_by_file(path);
    assert_int_equal(xep_joiners_open(&door->group, &door->args, &rendezvous, xep_ucp_transport_open, &door->joiners),
                     XEP_OK);
    assert_int_equal(read_file(&door->address), XEP_OK);
}

static void close_door(door_t *door)
{
    xep_joiners_close(door->joiners);
    assert_true(access(path, F_OK) != 0);
    clean();
}

static xep_frames_t *knock(const door_t *door)
{
    xep_frames_t *frames = NULL;
    assert_int_equal(xep_frames_call(&config, xep_ucp_transport_open, &door->address, &frames), XEP_OK);
    return frames;
}

/* Until so many are in; or for a while, to see that nobody more comes. frames: of one that says something, or NULL. */
static uint32_t look(door_t *door, xep_frames_t *frames, uint32_t count, int32_t ms)
{
    uint64_t until = xep_deadline(ms);
    do {
        if (frames != NULL) (void)xep_frames_peek(frames, 0);
        usleep(1000);
    } while (xep_joiners_poll(door->joiners) != count && xep_clock_ns() < until);
    return xep_joiners_poll(door->joiners);
}

/* Whoever waits has the other side's progress made: both are in this thread. */
static xep_status_t both(void *arg)
{
    (void)xep_joiners_poll(((door_t *)arg)->joiners);
    return XEP_OK;
}

static xep_patience_t some_time(door_t *door)
{
    return (xep_patience_t){.deadline_ns = xep_deadline(IN_TIME_MS), .look = both, .arg = door};
}

static xep_status_t only_frames(void *arg)
{
    if (arg != NULL) (void)xep_frames_peek(arg, 0);
    return XEP_OK;
}

static void hear(door_t *door, xep_frames_t *frames, xep_frame_kind_t kind, uint32_t rank, uint32_t nranks)
{
    xep_join_t join = {.frames = frames};
    xep_message_t *message;
    xep_patience_t patience = some_time(door);
    assert_int_equal(xep_join_hear(&join, kind, &patience, &message), XEP_OK);
    assert_int_equal(message->frame.rank, rank);
    assert_int_equal(message->frame.nranks, nranks);
    free(message);
}

TEST(joiners_are_let_in_and_welcome)
{
    door_t door;
    open_door(&door, 2);
    xep_frames_t *first = knock(&door), *second;
    assert_int_equal(look(&door, first, 1, IN_TIME_MS), 1);
    second = knock(&door);
    assert_int_equal(look(&door, second, 2, IN_TIME_MS), 2);
    xep_frames_t *third = knock(&door);
    assert_int_equal(look(&door, third, 3, 200), 2);
    assert_int_equal(xep_joiners_welcome(door.joiners), XEP_OK);
    assert_true(access(path, F_OK) != 0); /* nobody else is let in */
    hear(&door, first, XEP_FRAME_HEARD, 0, 0);
    hear(&door, first, XEP_FRAME_WELCOME, 1, 3);
    hear(&door, second, XEP_FRAME_HEARD, 0, 0);
    hear(&door, second, XEP_FRAME_WELCOME, 2, 3);
    assert_null(xep_frames_peek(third, 0));
    xep_frames_close(third);
    xep_frames_close(second);
    xep_frames_close(first);
    close_door(&door);
}

/* What is longer than UCX sends at once comes whole, and as it was. */
TEST(bytes_of_all_sizes_are_exchanged)
{
    static const size_t sizes[] = {0, 1, 8, 4096, 100000, 3000001};
    door_t door;
    open_door(&door, 1);
    xep_frames_t *frames = knock(&door);
    assert_int_equal(look(&door, frames, 1, IN_TIME_MS), 1);
    hear(&door, frames, XEP_FRAME_HEARD, 0, 0);
    for (uint32_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint8_t *given = malloc(sizes[i] + 1), *taken = malloc(sizes[i] + 1);
        assert_true(given != NULL && taken != NULL);
        for (size_t b = 0; b < sizes[i]; b++) given[b] = (uint8_t)(b * 7 + b / 251 + i);
        xep_frame_t give = {.kind = XEP_FRAME_GIVE, .exchange = i, .bytes = sizes[i]};
        xep_patience_t patience = {.deadline_ns = xep_deadline(IN_TIME_MS), .look = only_frames, .arg = frames};
        assert_int_equal(xep_frames_send(frames, 0, give, NULL, given), XEP_OK);
        assert_int_equal(xep_joiners_take(door.joiners, i, taken, sizes[i], &patience), XEP_OK);
        assert_memory_equal(given, taken, sizes[i]);
        free(taken);
        free(given);
    }
    xep_frames_close(frames);
    close_door(&door);
}

/* ---- strangers ---- */

/* The ports on which this process listens, of which some are the door's. */
static uint32_t find_ports(struct sockaddr_in ports[8])
{
    uint32_t count = 0;
    for (int file = 0; file < 1024 && count < 8; file++) {
        int listens = 0;
        socklen_t bytes = sizeof listens, size = sizeof ports[0];
        if (getsockopt(file, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 || !listens) continue;
        if (getsockname(file, (struct sockaddr *)(void *)&ports[count], &size) != 0) continue;
        if (ports[count].sin_family == AF_INET) count++;
    }
    return count;
}

enum { FLOOD = 100 };

/* Those that say nothing, and those that say what is of nobody's protocol. */
static void flood(int sockets[FLOOD])
{
    struct sockaddr_in ports[8];
    char junk[1000];
    uint32_t count = find_ports(ports);
    memset(junk, 'x', sizeof junk);
    for (uint32_t i = 0; i < FLOOD; i++) {
        sockets[i] = count == 0 ? -1 : socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (sockets[i] < 0) continue;
        struct sockaddr_in to = ports[i % count];
        if (to.sin_addr.s_addr == 0) to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        (void)connect(sockets[i], (struct sockaddr *)(void *)&to, sizeof to);
        usleep(1000);
        if (i % 2 != 0) (void)!send(sockets[i], junk, sizeof junk, MSG_NOSIGNAL);
    }
}

/* One that speaks UCX, and may or may not have the key. */
typedef struct stranger {
    xep_transport_t *transport;
    xep_frame_t frame;
} stranger_t;

static stranger_t open_stranger(const door_t *door)
{
    const xep_whereabouts_t where = {.nranks = 2, .local = 1};
    stranger_t one = {.frame = {.kind = XEP_FRAME_HELLO}};
    memcpy(one.frame.key, door->address.joiners_key, sizeof one.frame.key);
    assert_int_equal(xep_ucp_transport_open(&config, &one.transport), XEP_OK);
    assert_int_equal(one.transport->ops->meet(one.transport, &where, 1), XEP_OK);
    assert_int_equal(one.transport->ops->admit(one.transport, 0, door->address.transport, door->address.bytes), XEP_OK);
    return one;
}

static void say(door_t *door, const stranger_t *one, const void *data, size_t bytes)
{
    assert_int_equal(one->transport->ops->ctl(one->transport, 0, data, bytes), XEP_OK);
    for (int i = 0; i < 10; i++) {
        (void)one->transport->ops->progress(one->transport);
        assert_int_equal(xep_joiners_poll(door->joiners), 0);
    }
}

TEST(strangers_are_not_let_in_and_hold_nobody_up)
{
    door_t door;
    int sockets[FLOOD];
    char junk[2000];
    open_door(&door, 1);
    flood(sockets);
    stranger_t stranger = open_stranger(&door);
    memset(junk, 'x', sizeof junk);
    for (size_t bytes = 0; bytes <= sizeof junk; bytes = bytes * 3 / 2 + 1) say(&door, &stranger, junk, bytes);
    stranger.frame.key[0] ^= 1;
    for (int i = 0; i < FLOOD; i++) say(&door, &stranger, &stranger.frame, sizeof stranger.frame);
    xep_address_t wrong = door.address;
    xep_frames_t *without = NULL;
    wrong.joiners_key[XEP_ADDRESS_HALF - 1] ^= 128;
    assert_int_equal(xep_frames_call(&config, xep_ucp_transport_open, &wrong, &without), XEP_OK);
    assert_int_equal(look(&door, without, 1, 300), 0);
    xep_frames_t *good = knock(&door);
    assert_int_equal(look(&door, good, 1, IN_TIME_MS), 1);
    hear(&door, good, XEP_FRAME_HEARD, 0, 0);
    assert_null(xep_frames_peek(without, 0));
    for (int i = 0; i < FLOOD; i++)
        if (sockets[i] >= 0) close(sockets[i]);
    stranger.transport->ops->close(stranger.transport);
    xep_frames_close(without);
    xep_frames_close(good);
    close_door(&door);
}

/* With the key, and wrong nevertheless. */
TEST(greetings_that_are_no_good_are_refused)
{
    door_t door;
    struct {
        xep_frame_t frame;
        uint8_t transport[400];
    } hello = {0};
    open_door(&door, 1);
    stranger_t stranger = open_stranger(&door);
    for (size_t bytes = 0; bytes <= sizeof hello - sizeof hello.frame; bytes = bytes * 2 + 1) {
        hello.frame = stranger.frame;
        hello.frame.joiner = bytes;
        hello.frame.bytes = bytes;
        say(&door, &stranger, &hello, sizeof hello.frame + bytes);
        hello.frame.bytes = bytes + 1;
        say(&door, &stranger, &hello, sizeof hello.frame + bytes);
        hello.frame.bytes = UINT64_MAX;
        say(&door, &stranger, &hello, sizeof hello.frame + bytes);
    }
    static const uint32_t kinds[] = {0, XEP_FRAME_WELCOME, XEP_FRAME_SETTLED, XEP_FRAME_VERDICT, 8, UINT32_MAX};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        hello.frame = stranger.frame;
        hello.frame.kind = kinds[i];
        say(&door, &stranger, &hello.frame, sizeof hello.frame);
    }
    xep_frames_t *good = knock(&door);
    assert_int_equal(look(&door, good, 1, IN_TIME_MS), 1);
    stranger.transport->ops->close(stranger.transport);
    xep_frames_close(good);
    close_door(&door);
}

TEST(one_that_is_gone_before_all_are_here_leaves_its_place)
{
    door_t door;
    open_door(&door, 2);
    const xep_frame_t given_up = {.kind = XEP_FRAME_SETTLED, .status = XEP_ERR_ABORTED};
    for (int says = 0; says < 2; says++) {
        xep_frames_t *gone = knock(&door);
        assert_int_equal(look(&door, gone, 1, IN_TIME_MS), 1);
        if (says) assert_int_equal(xep_frames_send(gone, 0, given_up, "enough", NULL), XEP_OK);
        if (says) assert_int_equal(look(&door, gone, 0, IN_TIME_MS), 0);
        xep_frames_close(gone);
        assert_int_equal(look(&door, NULL, 0, IN_TIME_MS), 0);
    }
    xep_frames_t *first = knock(&door), *second = knock(&door);
    assert_int_equal(look(&door, first, 1, IN_TIME_MS), 1);
    assert_int_equal(look(&door, second, 2, IN_TIME_MS), 2);
    xep_frames_close(first);
    xep_frames_close(second);
    close_door(&door);
}

/* What it gives must be what all give; that it has died or given up is its fault by name. */
TEST(joiners_are_blamed_by_name)
{
    static const struct {
        xep_frame_t frame;
        xep_status_t status;
        const char *reason;
    } cases[] = {
        {{.kind = XEP_FRAME_GIVE, .exchange = 2}, XEP_ERR_MISMATCH, "gives other bytes"},
        {{.kind = XEP_FRAME_GIVE, .exchange = 1, .bytes = 0}, XEP_ERR_MISMATCH, "gives other bytes"},
        {{.kind = XEP_FRAME_SETTLED, .status = XEP_ERR_NO_MEMORY}, XEP_ERR_NO_MEMORY, "no room here"},
        {{.kind = XEP_FRAME_SETTLED, .status = -4711}, XEP_ERR_PEER, "no room here"},
        {{.kind = XEP_FRAME_WELCOME}, XEP_ERR_PROTOCOL, "unexpected message"},
        {{.kind = 0}, XEP_ERR_PEER, "the connection is gone"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        door_t door;
        char bytes[8], name[80];
        if (i != 0) unit_before_each();
        open_door(&door, 1);
        xep_frames_t *frames = knock(&door);
        assert_int_equal(look(&door, frames, 1, IN_TIME_MS), 1);
        assert_int_equal(xep_joiners_welcome(door.joiners), XEP_OK);
        if (cases[i].frame.kind == 0) xep_frames_close(frames), frames = NULL;
        else assert_int_equal(xep_frames_send(frames, 0, cases[i].frame, "no room here", NULL), XEP_OK);
        xep_patience_t patience = {.deadline_ns = xep_deadline(IN_TIME_MS), .look = only_frames, .arg = frames};
        assert_int_equal(xep_joiners_take(door.joiners, 1, bytes, sizeof bytes, &patience), cases[i].status);
        snprintf(name, sizeof name, "process %d, which was to be rank 1: ", (int)getpid());
        assert_non_null(strstr(xep_last_error(), name));
        assert_non_null(strstr(xep_last_error(), cases[i].reason));
        xep_frames_close(frames);
        close_door(&door);
    }
}

/* What a group that was killed has left: nobody is there. */
TEST(an_address_of_before_is_told_at_once)
{
    door_t door;
    xep_message_t *message;
    open_door(&door, 1);
    xep_address_t old = door.address;
    close_door(&door);
    unit_before_each();
    for (int i = 0; i < 3; i++) {
        xep_join_t join = {0};
        assert_int_equal(xep_frames_call(&config, xep_ucp_transport_open, &old, &join.frames), XEP_OK);
        xep_patience_t patience = {.deadline_ns = xep_deadline(IN_TIME_MS), .look = only_frames};
        assert_int_equal(xep_join_hear(&join, XEP_FRAME_HEARD, &patience, &message), XEP_ERR_PEER);
        assert_non_null(strstr(xep_last_error(), "the connection is gone"));
        xep_frames_close(join.frames);
    }
    clean();
}
