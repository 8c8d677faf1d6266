/* SPDX-License-Identifier: BSD-3-Clause */

#include "pmix_boot.h"

#include <stdlib.h>

#include "boot.h"
#include "error.h"
#include "pmix_client.h"
#include "pmix_life.h"

typedef struct pmix_boot {
    xep_boot_t boot; /* first: the core's pointer is ours */
    xep_pmix_client_t *client;
} pmix_boot_t;

static xep_status_t pmix_allgather(xep_boot_t *boot, const void *send, void *recv, size_t bytes)
{
    return xep_pmix_exchange(((pmix_boot_t *)boot)->client, boot, send, recv, bytes);
}

/* Runs before PMIx_Finalize: handlers run in reverse order. A fork leaves no report. */
static void say_exit_report(void)
{
    xep_pmix_client_t *client;
    if (xep_pmix_client_open(0, 0, &client) == XEP_OK && client->exchanges > 0) xep_pmix_life_leave(client);
}

/* whether a variable is set and holds another number */
static int differs(const char *name, uint32_t number)
{
    const char *text = getenv(name);
    return text != NULL && strtoul(text, NULL, 10) != number;
}

/* Workers of torchrun inherit the one PMIx rank of the process that started them. */
static xep_status_t check_torch(uint32_t rank, uint32_t nranks)
{
    if (getenv("TORCHELASTIC_RUN_ID") == NULL && getenv("LOCAL_RANK") == NULL) return XEP_OK;
    if (!differs("RANK", rank) && !differs("WORLD_SIZE", nranks)) return XEP_OK;
    return xep_fail(XEP_ERR_BOOT,
                    "torchrun says rank %s of %s ranks, PMIx says rank %u of %u: pass an allgather over "
                    "torch.distributed to xep_group_create(), or start the ranks without torchrun",
                    getenv("RANK") == NULL ? "(none)" : getenv("RANK"),
                    getenv("WORLD_SIZE") == NULL ? "(none)" : getenv("WORLD_SIZE"), rank, nranks);
}

xep_status_t xep_pmix_boot_open(int32_t timeout_ms, xep_boot_t **boot_p)
{
    xep_pmix_client_t *client;
    xep_status_t status = xep_pmix_client_open(timeout_ms, 1, &client);
    if (status != XEP_OK) return status;
    status = check_torch(client->self.rank, client->nranks);
    if (status == XEP_OK && client->nranks == 1) status = xep_boot_single_allowed();
    if (status != XEP_OK) return status;
    /* registered after the client's own handler, which finalizes PMIx: so this one runs first */
    if (!client->will_leave) client->will_leave = atexit(say_exit_report) == 0;
    /* the client stays when it is freed: a process has one, finalized when the process exits */
    pmix_boot_t *boot = xep_boot_new(sizeof *boot, (xep_boot_t){.name = "pmix",
                                                                .allgather = pmix_allgather,
                                                                .dead = &client->dead_rank,
                                                                .rank = client->self.rank,
                                                                .nranks = client->nranks,
                                                                .timeout_ms = timeout_ms});
    if (boot == NULL) return XEP_ERR_NO_MEMORY;
    boot->client = client;
    *boot_p = &boot->boot;
    return XEP_OK;
}

const char *xep_pmix_version(void)
{
    return xep_pmix_api_version();
}

const char *xep_pmix_path(void)
{
    return xep_pmix_api_path();
}
