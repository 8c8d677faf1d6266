/* SPDX-License-Identifier: BSD-3-Clause */

/* Sockets never block: between looks at them the group makes progress, and a caller may give up. */
#define _GNU_SOURCE /* accept4 */
#include "stream.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cpu.h"
#include "error.h"

/* MAGIC: "xepg". TURN_MS: a poll this long at most, as the group's other connections want progress meanwhile. */
enum { MAGIC = 0x78657067, TURN_MS = 5, BACKLOG = 64 };

/* A sockaddr_storage would need casts between types of which the compiler may assume that they never alias. */
typedef union any {
    struct sockaddr all;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
} any_t;

/* ---- addresses ---- */

static void add_host(xep_address_t *address, uint32_t family, const void *bytes)
{
    if (address->count == XEP_ADDRESS_HOSTS) return;
    xep_address_host_t *host = &address->hosts[address->count++];
    *host = (xep_address_host_t){.family = family};
    memcpy(host->bytes, bytes, family == 4 ? 4 : 16);
}

/* Loopback first: most newcomers are on this host. Addresses that need a scope are of no use elsewhere. */
static void add_interfaces(xep_address_t *address)
{
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) != 0) return;
    for (const struct ifaddrs *one = all; one != NULL; one = one->ifa_next) {
        if (one->ifa_addr == NULL || (one->ifa_flags & IFF_LOOPBACK) != 0 || (one->ifa_flags & IFF_UP) == 0) continue;
        any_t at;
        memset(&at, 0, sizeof at);
        at.all.sa_family = one->ifa_addr->sa_family;
        if (at.all.sa_family == AF_INET) {
            memcpy(&at.in, one->ifa_addr, sizeof at.in);
            add_host(address, 4, &at.in.sin_addr);
        } else if (at.all.sa_family == AF_INET6) {
            memcpy(&at.in6, one->ifa_addr, sizeof at.in6);
            if (!IN6_IS_ADDR_LINKLOCAL(&at.in6.sin6_addr)) add_host(address, 6, &at.in6.sin6_addr);
        }
    }
    freeifaddrs(all);
}

/* The socket address of one of the hosts that an address lists; returns its length. */
static socklen_t place(const xep_address_t *address, uint32_t host, any_t *at)
{
    const xep_address_host_t *is = &address->hosts[host];
    memset(at, 0, sizeof *at);
    if (is->family == 4) {
        at->in = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)address->port)};
        memcpy(&at->in.sin_addr, is->bytes, sizeof at->in.sin_addr);
        return sizeof at->in;
    }
    at->in6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)address->port)};
    memcpy(&at->in6.sin6_addr, is->bytes, sizeof at->in6.sin6_addr);
    return sizeof at->in6;
}

static void name_host(const xep_address_t *address, uint32_t host, char text[INET6_ADDRSTRLEN])
{
    const xep_address_host_t *is = &address->hosts[host];
    if (inet_ntop(is->family == 4 ? AF_INET : AF_INET6, is->bytes, text, INET6_ADDRSTRLEN) == NULL)
        snprintf(text, INET6_ADDRSTRLEN, "?");
}

/* ---- listening and connecting ---- */

/* TCP_NODELAY: frames are small, and each is waited for. */
static int open_socket(int family)
{
    int stream = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int one = 1;
    if (stream >= 0) (void)setsockopt(stream, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return stream;
}

/* Everywhere: both families by one socket, where there is IPv6. */
static int bind_socket(int everywhere)
{
    any_t at = {.in6 = {.sin6_family = AF_INET6}};
    int zero = 0, stream = everywhere ? open_socket(AF_INET6) : -1;
    if (stream >= 0 && setsockopt(stream, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero) == 0 &&
        bind(stream, &at.all, sizeof at.in6) == 0)
        return stream;
    if (stream >= 0) close(stream);
    stream = open_socket(AF_INET);
    if (stream < 0) return -1;
    at = (any_t){.in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(everywhere ? INADDR_ANY : INADDR_LOOPBACK)}};
    if (bind(stream, &at.all, sizeof at.in) == 0) return stream;
    close(stream);
    return -1;
}

xep_status_t xep_stream_listen(int everywhere, xep_address_t *address, int *stream_p)
{
    const uint32_t loopback = htonl(INADDR_LOOPBACK);
    any_t at;
    socklen_t bytes = sizeof at;
    int stream = bind_socket(everywhere);
    if (stream < 0 || listen(stream, BACKLOG) != 0 || getsockname(stream, &at.all, &bytes) != 0) {
        int error = errno;
        if (stream >= 0) close(stream);
        return xep_fail(XEP_ERR_BOOT, "cannot listen for newcomers: %s", strerror(error));
    }
    address->port = ntohs(at.all.sa_family == AF_INET ? at.in.sin_port : at.in6.sin6_port);
    add_host(address, 4, &loopback);
    if (everywhere) add_interfaces(address);
    *stream_p = stream;
    return XEP_OK;
}

/* What the listener has set is not inherited everywhere, so it is said again. */
int xep_stream_accept(int listener)
{
    int one = 1, stream = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (stream >= 0) (void)setsockopt(stream, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return stream;
}

/* ---- waiting ---- */

/* Until the socket is ready, the deadline has passed, or whoever waits has had enough (patience->look, which also makes
 * the group's progress). */
static xep_status_t wait_for(int stream, short events, const xep_patience_t *patience)
{
    struct pollfd at = {.fd = stream, .events = events};
    for (;;) {
        /* also when the connection is gone: the call that follows finds out why */
        int ready = poll(&at, 1, TURN_MS);
        if (ready > 0) return XEP_OK;
        xep_status_t status = patience->look(patience->arg);
        if (status != XEP_OK) return status;
        if (xep_clock_ns() >= patience->deadline_ns) return xep_fail(XEP_ERR_TIMEOUT, "deadline passed");
    }
}

static xep_status_t fail_gone(int error)
{
    return xep_fail(XEP_ERR_PEER, "the connection is gone: %s", error == 0 ? "closed" : strerror(error));
}

xep_status_t xep_stream_connect(const xep_address_t *address, uint32_t host, const xep_patience_t *patience,
                                int *stream_p)
{
    any_t at;
    char name[INET6_ADDRSTRLEN];
    int error = 0;
    socklen_t bytes = place(address, host, &at), size = sizeof error;
    int stream = open_socket(at.all.sa_family);
    name_host(address, host, name);
    if (stream < 0) return xep_fail(XEP_ERR_BOOT, "no socket: %s", strerror(errno));
    xep_status_t status = XEP_OK;
    /* it fails at once, or goes on, and then the socket knows the error when it can be written to */
    if (connect(stream, &at.all, bytes) != 0) {
        error = errno;
        if (error == EINPROGRESS) {
            status = wait_for(stream, POLLOUT, patience);
            if (status == XEP_OK && getsockopt(stream, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
        }
    }
    if (status == XEP_OK && error != 0)
        status = xep_fail(XEP_ERR_PEER, "nobody listens at %s, port %u: %s", name, address->port, strerror(error));
    if (status == XEP_OK) *stream_p = stream;
    else close(stream);
    return status;
}

/* ---- bytes ---- */

/* Errors that say nothing of the connection. */
static int is_later(int error)
{
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

/* MSG_NOSIGNAL: a peer that is gone is an error here, not the end of the caller's program. */
static xep_status_t send_bytes(int stream, const void *data, size_t bytes, const xep_patience_t *patience)
{
    const char *at = data;
    while (bytes > 0) {
        ssize_t done = send(stream, at, bytes, MSG_NOSIGNAL);
        if (done < 0 && !is_later(errno)) return fail_gone(errno);
        if (done < 0) {
            xep_status_t status = wait_for(stream, POLLOUT, patience);
            if (status != XEP_OK) return status;
            continue;
        }
        at += done;
        bytes -= (size_t)done;
    }
    return XEP_OK;
}

xep_status_t xep_stream_recv(int stream, void *data, size_t bytes, const xep_patience_t *patience)
{
    char *at = data;
    while (bytes > 0) {
        ssize_t done = recv(stream, at, bytes, 0);
        if (done == 0) return fail_gone(0);
        if (done < 0 && !is_later(errno)) return fail_gone(errno);
        if (done < 0) {
            xep_status_t status = wait_for(stream, POLLIN, patience);
            if (status != XEP_OK) return status;
            continue;
        }
        at += done;
        bytes -= (size_t)done;
    }
    return XEP_OK;
}

xep_status_t xep_stream_send(int stream, xep_frame_t frame, const char *text, const void *data,
                             const xep_patience_t *patience)
{
    frame.magic = MAGIC;
    snprintf(frame.text, sizeof frame.text, "%.*s", XEP_FRAME_TEXT - 1, text == NULL ? "" : text);
    xep_status_t status = send_bytes(stream, &frame, sizeof frame, patience);
    return status == XEP_OK && frame.bytes != 0 ? send_bytes(stream, data, frame.bytes, patience) : status;
}

/* A frame is bytes that another process wrote: text ends in it, and kinds that do not exist are refused here, once for
 * all who read frames. */
xep_status_t xep_stream_recv_frame(int stream, xep_frame_t *frame, const xep_patience_t *patience)
{
    xep_status_t status = xep_stream_recv(stream, frame, sizeof *frame, patience);
    if (status != XEP_OK) return status;
    frame->text[XEP_FRAME_TEXT - 1] = '\0';
    if (frame->magic != MAGIC || frame->kind < XEP_FRAME_HELLO || frame->kind > XEP_FRAME_VERDICT)
        return xep_fail(XEP_ERR_PROTOCOL, "invalid frame over the connection: magic %x (%x), kind %u (%d to %d)",
                        frame->magic, (uint32_t)MAGIC, frame->kind, XEP_FRAME_HELLO, XEP_FRAME_VERDICT);
    return XEP_OK;
}

/* Half a frame counts as none: the rest is on its way, or the connection ends and the next look says so. */
int xep_stream_peek(int stream, xep_frame_t *frame)
{
    ssize_t bytes = recv(stream, frame, sizeof *frame, MSG_PEEK);
    if (bytes < 0) return is_later(errno) ? 0 : -1;
    if (bytes == 0) return -1;
    return bytes == (ssize_t)sizeof *frame;
}
