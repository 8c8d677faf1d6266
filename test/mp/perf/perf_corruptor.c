/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Preloaded, it stands between xep_perf and the library and flips one bit of one element of
 * what an operation brought to one rank: PERF_CORRUPT=OPERATION,CALL,RANK,ROW,COLUMN, where
 * CALL counts that operation from 0 and elements are of 16 bits. OPERATION refuse: that dispatch fails on the rank.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xep/xep.h>

/* The address to corrupt, or NULL when this call is not the one. */
static uint16_t *target(const char *operation, unsigned call, void *base, size_t stride)
{
    const char *wish = getenv("PERF_CORRUPT"), *own = getenv("PMIX_RANK");
    unsigned at, rank, row, column;
    char name[16];

    if (wish == NULL || own == NULL || sscanf(wish, "%15[^,],%u,%u,%u,%u", name, &at, &rank, &row, &column) != 5)
        return NULL;
    if (strcmp(name, operation) != 0 || at != call || rank != strtoul(own, NULL, 10)) return NULL;
    return (uint16_t *)((char *)base + row * stride) + column;
}

static const xep_recv_t *received(const xep_handle_t *handle)
{
    const xep_recv_t *recv = NULL;
    (void)xep_handle_recv(handle, &recv);
    return recv;
}

xep_status_t xep_dispatch(xep_buffer_t *buffer, const xep_dispatch_args_t *args, xep_handle_t **handle_p,
                          xep_request_t **req_p)
{
    static unsigned calls;
    xep_status_t (*real)(xep_buffer_t *, const xep_dispatch_args_t *, xep_handle_t **, xep_request_t **);
    xep_status_t status;
    uint16_t *element;

    if (req_p == NULL && target("refuse", calls, buffer, 0) != NULL) return XEP_ERR_TRANSPORT;
    *(void **)&real = dlsym(RTLD_NEXT, "xep_dispatch");
    status = real(buffer, args, handle_p, req_p);
    if (status == XEP_OK && req_p == NULL) {
        const xep_recv_t *recv = received(*handle_p);
        element = target("dispatch", calls++, recv->x, recv->x_stride);
        if (element != NULL) *element ^= 1;
    }
    return status;
}

xep_status_t xep_combine(xep_handle_t *handle, const xep_combine_args_t *args, xep_request_t **req_p)
{
    static unsigned calls;
    xep_status_t (*real)(xep_handle_t *, const xep_combine_args_t *, xep_request_t **);
    xep_status_t status;
    uint16_t *element;

    *(void **)&real = dlsym(RTLD_NEXT, "xep_combine");
    status = real(handle, args, req_p);
    if (status == XEP_OK && req_p == NULL) {
        element = target("combine", calls++, args->out, received(handle)->hidden * sizeof *element);
        if (element != NULL) *element ^= 1;
    }
    return status;
}
