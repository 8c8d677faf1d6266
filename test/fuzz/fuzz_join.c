/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * What a newcomer is told by others: the address of a group, in memory and in a file, and what comes over the
 * connection to its rank 0. Of an address that is taken every number lies within its limits; what is refused is refused
 * with a sentence, and nothing is written.
 */
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "address.h"
#include "boot_join.h"
#include "fuzz_target.h"

const fuzz_target_t fuzz_target = {.name = "join", .unit = "addresses and frames", .runs = 20000};

enum { POISON = 0xa5, MOST_FRAMES = 8 };

/* ---- addresses ---- */

static void check_taken(const xep_address_t *address)
{
    if (address->port < 1 || address->port > UINT16_MAX) fuzz_fail("port %u", address->port);
    if (address->count < 1 || address->count > XEP_ADDRESS_HOSTS) fuzz_fail("%u hosts", address->count);
    for (uint32_t i = 0; i < address->count; i++)
        if (address->hosts[i].family != 4 && address->hosts[i].family != 6)
            fuzz_fail("host %u of family %u", i, address->hosts[i].family);
    if (address->version != xep_address_version()) fuzz_fail("version %x", address->version);
}

static void judge(xep_status_t status, const xep_address_t *address, const char *where)
{
    if (status == XEP_OK) {
        check_taken(address);
        return;
    }
    if (status != XEP_ERR_PROTOCOL && status != XEP_ERR_MISMATCH) fuzz_fail("status %d", status);
    if (strstr(xep_last_error(), where) == NULL) fuzz_fail("\"%s\" does not say where", xep_last_error());
    for (size_t i = 0; i < sizeof *address; i++)
        if (((const uint8_t *)address)[i] != POISON) fuzz_fail("byte %zu was written", i);
}

static void check_memory(const uint8_t *data, size_t size)
{
    xep_address_t address;
    memset(&address, POISON, sizeof address);
    xep_status_t status = xep_address_check(data, size, "what was found", &address);
    judge(status, &address, "what was found");
}

static void check_file(const uint8_t *data, size_t size)
{
    char path[300];
    xep_address_t address;
    snprintf(path, sizeof path, "%s/address", fuzz_folder());
    fuzz_write(path, data, size);
    if (chmod(path, 0600) != 0) fuzz_fail("chmod");
    memset(&address, POISON, sizeof address);
    xep_status_t status = xep_address_read(path, &address);
    judge(status, &address, path);
    (void)unlink(path);
}

/* With all that is in front of the numbers, and the sum, as they have to be: else hardly any input comes so far. */
static void check_sealed(const uint8_t *data, size_t size)
{
    xep_address_t address;
    size_t front = offsetof(xep_address_t, port), room = sizeof address - front;
    if (xep_address_open(&address) != XEP_OK) fuzz_fail("no random numbers");
    memcpy((char *)&address + front, data, size < room ? size : room);
    xep_address_seal(&address);
    check_memory((const uint8_t *)&address, sizeof address);
    check_file((const uint8_t *)&address, sizeof address);
}

/* ---- frames ---- */

static void check_frames(const uint8_t *data, size_t size)
{
    int ends[2];
    xep_join_params_t params = XEP_JOIN_PARAMS_INIT;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) fuzz_fail("no sockets");
    if (size > 65536) size = 65536;
    if (write(ends[0], data, size) != (ssize_t)size) fuzz_fail("write");
    close(ends[0]);
    xep_join_t join = {.params = &params, .timeout_ms = 1, .stream = ends[1]};
    for (int i = 0; i < MOST_FRAMES; i++) {
        xep_frame_t frame;
        xep_patience_t patience = xep_join_patience(&join, 0);
        xep_status_t status = xep_join_hear(&join, (xep_frame_kind_t)(1 + i % 7), &frame, &patience);
        if (status > 0 || status < XEP_ERR_BROKEN) fuzz_fail("status %d", status);
        if (status == XEP_ERR_PEER && strlen(xep_last_error()) == 0) fuzz_fail("no reason");
        if (status == XEP_OK && frame.kind != 1 + (uint32_t)i % 7) fuzz_fail("kind %u", frame.kind);
        if (status == XEP_OK && memchr(frame.text, '\0', sizeof frame.text) == NULL) fuzz_fail("a text without end");
    }
    close(ends[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input_t input = {data, data + size};
    uint64_t what = fuzz_below(&input, 4);
    size_t rest = (size_t)(input.end - input.at);
    if (what == 0) check_memory(input.at, rest);
    else if (what == 1) check_sealed(input.at, rest);
    else if (what == 2) check_file(input.at, rest);
    else check_frames(input.at, rest);
    fuzz_count(1);
    return 0;
}
