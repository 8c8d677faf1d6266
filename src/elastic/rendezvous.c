/* SPDX-License-Identifier: BSD-3-Clause */

#include "rendezvous.h"

#include "error.h"

/* ---- by a file ---- */

static xep_status_t publish_file(const xep_rendezvous_t *rendezvous, const xep_address_t *address)
{
    return xep_address_write(rendezvous->name, address);
}

static void unpublish_file(const xep_rendezvous_t *rendezvous, const xep_address_t *address)
{
    xep_address_remove(rendezvous->name, address);
}

static xep_status_t look_up_file(const xep_rendezvous_t *rendezvous, xep_address_t *address)
{
    return xep_address_read(rendezvous->name, address);
}

static const xep_rendezvous_ops_t file_ops = {.publish = publish_file,
                                              .unpublish = unpublish_file,
                                              .lookup = look_up_file};

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
