/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * All peers are connected when a buffer is created: the first operation would else pay for it, on every rank at another
 * time.
 */
#include "kit.h"

#include <stdlib.h>
#include <string.h>

static void connect_all(xep_kit_t *kit)
{
    xep_device_t *device = kit->env->device;
    kit->all_mapped = 1;
    for (uint32_t r = 0; r < kit->shape->nranks; r++) {
        kit->base[r] = device != NULL ? device->ops->map(device, r) : kit->env->wire->ops->map(kit->env->wire, r);
        if (kit->base[r] == NULL) kit->all_mapped = 0;
    }
}

static void find_owners(xep_kit_t *kit)
{
    for (uint32_t r = 0; r < kit->shape->nranks; r++)
        for (uint32_t e = kit->first_expert[r]; e < kit->first_expert[r + 1]; e++) kit->owner[e] = r;
}

static xep_status_t get_memory(xep_kit_t *kit, size_t slot_bytes)
{
    const xep_shape_t *shape = kit->shape;
    size_t slots = shape->slots, pairs = slots * shape->nranks;
    kit->slots = calloc(slots, slot_bytes);
    kit->base = calloc(shape->nranks, sizeof *kit->base);
    kit->owner = calloc(shape->experts, sizeof *kit->owner);
    kit->there = calloc(pairs, sizeof *kit->there);
    kit->combined = calloc(slots, sizeof *kit->combined);
    kit->offers = calloc(pairs, sizeof *kit->offers);
    if (kit->slots != NULL && kit->base != NULL && kit->owner != NULL && kit->there != NULL && kit->combined != NULL &&
        kit->offers != NULL)
        return XEP_OK;
    return kit->env->fail(kit->env, NULL, XEP_ERR_NO_MEMORY, "no memory for %u slots, %u ranks, %u experts",
                          shape->slots, shape->nranks, shape->experts);
}

xep_status_t xep_kit_open(const xep_env_t *env, size_t mode_bytes, size_t slot_bytes, void **mode_p)
{
    xep_kit_t *kit = calloc(1, mode_bytes);
    if (kit == NULL) return env->fail(env, NULL, XEP_ERR_NO_MEMORY, "no memory for the mode");
    kit->env = env;
    kit->shape = env->shape;
    kit->first_expert = env->shape->first_expert;
    memcpy(kit->regions, env->regions, sizeof kit->regions);
    kit->own = (char *)kit->regions[XEP_REGION_ROWS].base - kit->regions[XEP_REGION_ROWS].offset;
    xep_status_t status = get_memory(kit, slot_bytes);
    if (status != XEP_OK) {
        xep_kit_close(kit);
        return status;
    }
    connect_all(kit);
    find_owners(kit);
    *mode_p = kit;
    return XEP_OK;
}

void xep_kit_close(void *mode)
{
    xep_kit_t *kit = mode;
    if (kit == NULL) return;
    free(kit->arena);
    free(kit->offers);
    free(kit->combined);
    free(kit->there);
    free(kit->owner);
    free(kit->base);
    free(kit->slots);
    free(kit);
}

xep_recv_t xep_kit_recv(const xep_kit_t *kit, const xep_op_t *op, uint64_t rows)
{
    const xep_dispatch_args_t *args = op->dispatch;
    return (xep_recv_t){.size = sizeof(xep_recv_t),
                        .rows = rows,
                        .capacity = args->capacity != 0 ? args->capacity : rows,
                        .dtype = args->dtype,
                        .hidden = args->hidden,
                        .topk = args->topk,
                        .topk_idx_dtype = args->topk_idx_dtype,
                        .first_expert = kit->first_expert[kit->shape->rank],
                        .local_experts = kit->shape->local_experts};
}
