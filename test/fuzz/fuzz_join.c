/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * What a joiner is told by others: the address of a group, in memory and in a file, and what comes from its rank 0;
 * and what comes to rank 0 from whoever sends. Of an address that is taken every number lies within its limits; what is
 * refused is refused with a sentence, and nothing is written. Of what comes nothing is read beyond its end.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "fuzz_target.h"
#include "group_grow.h"
#include "rendezvous.h"

const fuzz_target_t fuzz_target = {.name = "join", .unit = "addresses and frames", .runs = 20000};

enum { POISON = 0xa5, MOST_FRAMES = 8 };

/* ---- addresses ---- */

static void check_taken(const xep_address_t *address)
{
    if (address->bytes > sizeof address->transport) fuzz_fail("%u bytes", address->bytes);
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
    const xep_rendezvous_t rendezvous = xep_rendezvous_by_file(path);
    judge(rendezvous.ops->lookup(&rendezvous, &address), &address, path);
    (void)unlink(path);
}

/* With all that is in front of the numbers, and the sum, as they have to be: else hardly any input comes so far. */
static void check_sealed(const uint8_t *data, size_t size)
{
    xep_address_t address;
    if (xep_address_open(&address) != XEP_OK) fuzz_fail("no random numbers");
    if (xep_address_seal(&address, data, size) != XEP_OK) return;
    check_memory((const uint8_t *)&address, sizeof address);
    check_file((const uint8_t *)&address, sizeof address);
}

/* ---- frames ---- */

static xep_frame_t said; /* by the library, last */

/* A transport that is told by its owner what comes. */
static xep_status_t meet(xep_transport_t *transport, const xep_whereabouts_t *where, uint32_t most)
{
    (void)transport, (void)where, (void)most;
    return XEP_OK;
}

static xep_status_t admit(xep_transport_t *transport, uint32_t index, const void *address, size_t bytes)
{
    (void)transport, (void)index;
    return bytes != 0 && *(const uint8_t *)address == 0 ? xep_fail(XEP_ERR_PROTOCOL, "no address") : XEP_OK;
}

static xep_status_t progress(xep_transport_t *transport)
{
    (void)transport;
    return XEP_OK;
}

static xep_status_t ctl(xep_transport_t *transport, uint32_t index, const void *data, size_t bytes)
{
    (void)transport, (void)index;
    if (bytes >= sizeof said) memcpy(&said, data, sizeof said);
    return XEP_OK;
}

static int is_gone(xep_transport_t *transport, uint32_t index, char *why, size_t bytes)
{
    (void)transport, (void)index, (void)why, (void)bytes;
    return 0;
}

static void close_transport(xep_transport_t *transport)
{
    (void)transport;
}

static const xep_transport_ops_t ops =
    {.meet = meet, .admit = admit, .progress = progress, .ctl = ctl, .is_gone = is_gone, .close = close_transport};
static xep_transport_t told = {.ops = &ops, .address = "here", .address_bytes = 4};

static xep_status_t open_told(const xep_config_t *config, xep_transport_t **transport_p)
{
    (void)config;
    *transport_p = &told;
    return XEP_OK;
}

/* Flags say what of it is as it has to be; the rest is any. In memory of its own size, so that ASan sees its end. */
static void say(fuzz_input_t *input, const uint8_t *key, const uint64_t *joiner)
{
    enum { KEY = 1, SENDER = 2, BYTES = 8, KIND = 16, WHOLE = 32 };
    xep_frame_t frame;
    uint64_t flags = fuzz_take(input, 1);
    size_t bytes = flags & WHOLE ? sizeof frame + fuzz_below(input, 200) : fuzz_below(input, 2 * sizeof frame);
    uint8_t *message = malloc(bytes + 1);
    if (message == NULL) fuzz_fail("no memory");
    for (size_t i = 0; i < bytes; i++) message[i] = (uint8_t)fuzz_take(input, 1);
    if (bytes >= sizeof frame) {
        memcpy(&frame, message, sizeof frame);
        if (flags & KEY) memcpy(frame.key, key, sizeof frame.key);
        if (flags & SENDER) frame.joiner = joiner == NULL ? flags >> 6 : *joiner;
        if (flags & BYTES) frame.bytes = bytes - sizeof frame;
        if (flags & KIND) frame.kind = XEP_FRAME_HELLO + frame.kind % XEP_FRAME_VERDICT;
        memcpy(message, &frame, sizeof frame);
    }
    told.on_ctl(told.on_ctl_arg, (uint32_t)flags, message, bytes);
    free(message);
}

static void check_message(const xep_message_t *message)
{
    volatile uint8_t sum = 0;
    if (memchr(message->frame.text, '\0', sizeof message->frame.text) == NULL) fuzz_fail("a text without end");
    if (message->frame.kind < XEP_FRAME_HELLO || message->frame.kind > XEP_FRAME_VERDICT)
        fuzz_fail("kind %u", message->frame.kind);
    for (uint64_t i = 0; i < message->frame.bytes; i++) sum = (uint8_t)(sum + message->data[i]);
}

/* To rank 0. */
static void check_door(fuzz_input_t *input)
{
    static const xep_config_t config;
    xep_address_t address;
    xep_frames_t *frames;
    xep_message_t *message;
    uint32_t admitted = 0, to;
    const xep_patience_t now = {0};
    if (xep_frames_open(&config, open_told, 0, 4, &address, &frames) != XEP_OK) fuzz_fail("%s", xep_last_error());
    for (uint32_t i = 0; i < MOST_FRAMES; i++) {
        say(input, address.joiners_key, NULL);
        while ((message = xep_frames_hello(frames)) != NULL) {
            check_message(message);
            if (xep_frames_admit(frames, message, &to) == XEP_OK) admitted = to + 1;
            free(message);
        }
        for (uint32_t from = 0; from < admitted; from++)
            while (xep_frames_peek(frames, from) != NULL) {
                if (xep_frames_recv(frames, from, &now, &message) != XEP_OK) fuzz_fail("%s", xep_last_error());
                check_message(message);
                free(message);
            }
    }
    xep_frames_close(frames);
}

/* To a joiner, with the number that it has drawn. */
static void check_joiner(fuzz_input_t *input)
{
    static const xep_config_t config;
    xep_address_t address;
    xep_join_params_t params = XEP_JOIN_PARAMS_INIT;
    xep_join_t join = {.params = &params, .timeout_ms = 1};
    if (xep_address_open(&address) != XEP_OK || xep_address_seal(&address, "there", 5) != XEP_OK ||
        xep_frames_call(&config, open_told, &address, &join.frames) != XEP_OK)
        fuzz_fail("%s", xep_last_error());
    const uint64_t joiner = said.joiner;
    for (uint32_t i = 0; i < MOST_FRAMES; i++) {
        xep_message_t *message;
        xep_patience_t patience = xep_join_patience(&join, 0);
        say(input, address.own_key, &joiner);
        xep_status_t status = xep_join_hear(&join, (xep_frame_kind_t)(1 + i % XEP_FRAME_VERDICT), &patience, &message);
        if (status > 0 || status < XEP_ERR_BROKEN) fuzz_fail("status %d", status);
        if (status == XEP_ERR_PEER && strlen(xep_last_error()) == 0) fuzz_fail("no reason");
        if (message != NULL) check_message(message);
        if (status == XEP_OK && message == NULL) fuzz_fail("nothing came");
        free(message);
    }
    xep_frames_close(join.frames);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input_t input = {data, data + size};
    uint64_t what = fuzz_below(&input, 5);
    size_t rest = (size_t)(input.end - input.at);
    if (what == 0) check_memory(input.at, rest);
    else if (what == 1) check_sealed(input.at, rest);
    else if (what == 2) check_file(input.at, rest);
    else if (what == 3) check_door(&input);
    else check_joiner(&input);
    fuzz_count(1);
    return 0;
}
