/* SPDX-License-Identifier: BSD-3-Clause */

#define _GNU_SOURCE /* mkostemp */
#include "rendezvous.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "hash.h"
#include "process.h"

enum { FORMAT = 2, PATH_BYTES = 4096 };

static const uint8_t magic[8] = {'x', 'e', 'p', '-', 'g', 'r', 'o', 'w'};

/* Against truncated or damaged files, not against attacks. */
static uint64_t sum_of(const xep_address_t *address)
{
    const size_t from = offsetof(xep_address_t, bytes);
    return xep_hash_bytes(XEP_HASH_BEGIN, (const char *)address + from, sizeof *address - from);
}

/* Only the key keeps strangers out of a group that grows: so it comes from the system's generator, not from rand(). */
xep_status_t xep_address_open(xep_address_t *address)
{
    *address = (xep_address_t){.format = FORMAT, .version = XEP_OWN_VERSION};
    memcpy(address->magic, magic, sizeof magic);
    if (getrandom(address->joiners_key, XEP_ADDRESS_HALF, 0) == XEP_ADDRESS_HALF &&
        getrandom(address->own_key, XEP_ADDRESS_HALF, 0) == XEP_ADDRESS_HALF)
        return XEP_OK;
    return xep_fail(XEP_ERR_BOOT, "no random numbers for the key of an address: %s", strerror(errno));
}

xep_status_t xep_address_seal(xep_address_t *address, const void *transport, size_t bytes)
{
    if (bytes > sizeof address->transport)
        return xep_fail(XEP_ERR_TRANSPORT, "UCX has an address of %zu bytes (at most %zu; UCX_NET_DEVICES with fewer)",
                        bytes, sizeof address->transport);
    memcpy(address->transport, transport, bytes);
    address->bytes = (uint32_t)bytes;
    address->sum = sum_of(address);
    return XEP_OK;
}

/* The format before the length: a later one may be longer. */
xep_status_t xep_address_check(const void *data, size_t bytes, const char *where, xep_address_t *address)
{
    xep_address_t own = {0};
    memcpy(&own, data, bytes < sizeof own ? bytes : sizeof own);
    if (bytes < offsetof(xep_address_t, sum) || memcmp(own.magic, magic, sizeof magic) != 0)
        return xep_fail(XEP_ERR_PROTOCOL,
                        "no address of a group in %s: %zu bytes (expected %zu, beginning with \"xep-grow\")", where,
                        bytes, sizeof own);
    if (own.format != FORMAT || own.version != XEP_OWN_VERSION)
        return xep_fail(XEP_ERR_MISMATCH,
                        "%s is of a group with another version of xep: %x, format %u (this process has %x, format %u)",
                        where, own.version, own.format, XEP_OWN_VERSION, (uint32_t)FORMAT);
    if (bytes != sizeof own || own.sum != sum_of(&own) || own.bytes > sizeof own.transport)
        return xep_fail(XEP_ERR_PROTOCOL, "damaged address in %s: %zu bytes, or the wrong checksum (%zu bytes)", where,
                        bytes, sizeof own);
    *address = own;
    return XEP_OK;
}

/* ---- by a file ---- */

/* It is complete or not there: it is written beside its place and renamed. */

/* Called right after what failed, while errno is its. */
static xep_status_t fail_file(const char *what, const char *path)
{
    int error = errno;
    return xep_fail(XEP_ERR_BOOT, "cannot %s the address file %.300s: %s", what, path, strerror(error));
}

/* Replaces the file, at once, by one that this user alone can read. */
static xep_status_t publish_in_file(const xep_rendezvous_t *rendezvous, const xep_address_t *address)
{
    const char *path = rendezvous->name;
    char beside[PATH_BYTES];
    int length = snprintf(beside, sizeof beside, "%s.XXXXXX", path);
    if (length < 0 || (size_t)length >= sizeof beside)
        return xep_fail(XEP_ERR_INVALID, "the path of the address file is too long: %d bytes (at most %d)", length,
                        PATH_BYTES - 8);
    int file = mkostemp(beside, O_CLOEXEC); /* for this user alone, whatever the umask */
    if (file < 0) return fail_file("write", path);
    ssize_t done = write(file, address, sizeof *address);
    /* close() first: on a network file system it reports a full disk */
    if (close(file) == 0 && done == (ssize_t)sizeof *address && rename(beside, path) == 0) return XEP_OK;
    xep_status_t status = fail_file("write", path);
    (void)unlink(beside);
    return status;
}

/* O_NONBLOCK: a pipe of that name would hold this process up. */
static int open_file(const char *path)
{
    return open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

/*
 * The file holds the key: one that other users could read or write is refused, as ssh does. O_NOFOLLOW and fstat() of
 * the open file: what was checked is what is read.
 */
static xep_status_t check_owner(int file, const char *path)
{
    struct stat is;
    if (fstat(file, &is) != 0) return fail_file("read", path);
    if (!S_ISREG(is.st_mode)) return xep_fail(XEP_ERR_BOOT, "the path of the address file is not a file: %.300s", path);
    if (is.st_uid != geteuid())
        return xep_fail(XEP_ERR_BOOT, "the address file %.300s is of user %u (not of this one, %u)", path,
                        (unsigned)is.st_uid, (unsigned)geteuid());
    if ((is.st_mode & 077) != 0)
        return xep_fail(XEP_ERR_BOOT, "others may use the address file %.300s: mode %03o (600)", path,
                        (unsigned)is.st_mode & 0777);
    return XEP_OK;
}

/* Reads one byte more than allowed, to find files that are too long. */
static xep_status_t read_file(int file, const char *path, xep_address_t *address)
{
    char data[sizeof *address + 1], where[400];
    ssize_t bytes = read(file, data, sizeof data);
    if (bytes < 0) return fail_file("read", path);
    snprintf(where, sizeof where, "the address file %.300s", path);
    return xep_address_check(data, (size_t)bytes, where, address);
}

/* XEP_INPROGRESS: there is no such file. It must be this user's, and nobody else's to read or write. */
static xep_status_t look_up_in_file(const xep_rendezvous_t *rendezvous, xep_address_t *address)
{
    const char *path = rendezvous->name;
    int file = open_file(path);
    if (file < 0) return errno == ENOENT ? XEP_INPROGRESS : fail_file("read", path);
    xep_status_t status = check_owner(file, path);
    if (status == XEP_OK) status = read_file(file, path, address);
    close(file);
    return status;
}

/* A file that another group has written there meanwhile is not ours to remove. */
static void unpublish_in_file(const xep_rendezvous_t *rendezvous, const xep_address_t *address)
{
    xep_address_t there;
    if (look_up_in_file(rendezvous, &there) == XEP_OK && memcmp(&there, address, sizeof there) == 0)
        (void)unlink(rendezvous->name);
}

static const xep_rendezvous_ops_t file_ops = {.publish = publish_in_file,
                                              .unpublish = unpublish_in_file,
                                              .lookup = look_up_in_file};

xep_rendezvous_t xep_rendezvous_by_file(const char *path)
{
    return (xep_rendezvous_t){.ops = &file_ops, .kind = "address file", .name = path};
}

/* ---- by the caller's functions ---- */

static xep_status_t publish_by_call(const xep_rendezvous_t *rendezvous, const xep_address_t *address)
{
    int ret = rendezvous->publish(rendezvous->ctx, address, sizeof *address);
    return ret == 0 ? XEP_OK : xep_fail(XEP_ERR_BOOT, "args.publish returned %d", ret);
}

/* NULL tells the caller that the address is void. Its result does not matter: late joiners are not let in. */
static void unpublish_by_call(const xep_rendezvous_t *rendezvous, const xep_address_t *address)
{
    (void)address;
    (void)rendezvous->publish(rendezvous->ctx, NULL, 0);
}

/*
 * No bytes mean "not yet", and the wait asks again. An address has passed through the caller's hands, and perhaps over
 * a network: it is checked like that of a file.
 */
static xep_status_t look_up_by_call(const xep_rendezvous_t *rendezvous, xep_address_t *address)
{
    char data[XEP_ADDRESS_BYTES] = {0};
    size_t bytes = 0;
    int ret = rendezvous->lookup(rendezvous->ctx, data, sizeof data, &bytes);
    if (ret != 0) return xep_fail(XEP_ERR_BOOT, "params.lookup returned %d", ret);
    if (bytes == 0) return XEP_INPROGRESS;
    if (bytes > sizeof data)
        return xep_fail(XEP_ERR_BOOT, "params.lookup returned %zu bytes (at most %zu)", bytes, sizeof data);
    return xep_address_check(data, bytes, "what params.lookup gave", address);
}

static const xep_rendezvous_ops_t call_ops = {.publish = publish_by_call,
                                              .unpublish = unpublish_by_call,
                                              .lookup = look_up_by_call};

xep_rendezvous_t xep_rendezvous_by_call(xep_publish_fn publish, xep_lookup_fn lookup, void *ctx)
{
    return (xep_rendezvous_t){.ops = &call_ops,
                              .kind = "callbacks",
                              .name = "",
                              .publish = publish,
                              .lookup = lookup,
                              .ctx = ctx};
}
