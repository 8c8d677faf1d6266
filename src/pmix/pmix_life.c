/* SPDX-License-Identifier: BSD-3-Clause */

/* Asked for only when an exchange has failed. A rank that has died before it put anything is found by that. */
#include "pmix_life.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cpu.h"
#include "host.h"
#include "pmix_call.h"

enum { LINGER_NS = 700000000 }; /* the others look every half second (pmix_call.c) */

/** A rank's process; written by the rank, read by all. */
typedef struct life {
    uint64_t processes, start; /* xep_host_processes() */
    int32_t pid;
    uint32_t reserved;
} life_t;
_Static_assert(sizeof(life_t) == 24, "exchanged as bytes");

static const char *const key = "xep.life";

static life_t own_life(void)
{
    int32_t pid = (int32_t)getpid();
    return (life_t){.processes = xep_host_processes(), .start = xep_host_start(pid), .pid = pid};
}

pmix_status_t xep_pmix_life_put(const xep_pmix_client_t *client)
{
    life_t life = own_life();
    pmix_value_t value = {.type = PMIX_BYTE_OBJECT, .data = {.bo = {.bytes = (char *)&life, .size = sizeof life}}};
    return client->api->put(PMIX_GLOBAL, key, &value);
}

static uint32_t find_dead(xep_pmix_client_t *client, uint64_t deadline_ns)
{
    uint64_t processes = xep_host_processes();
    for (uint32_t r = 0; r < client->nranks && xep_clock_ns() < deadline_ns; r++) {
        life_t life;
        if (r == client->self.rank) continue;
        xep_pmix_result_t result = xep_pmix_call_ask(client, r, key, &life, sizeof life, deadline_ns);
        if (!result.done || result.ret != PMIX_SUCCESS || result.bytes != sizeof life) continue;
        if (life.processes == processes && life.pid > 0 && xep_host_process_gone(life.pid, life.start)) return r;
    }
    return UINT32_MAX;
}

void xep_pmix_life_find_dead(xep_pmix_client_t *client, uint64_t deadline_ns)
{
    uint32_t dead = find_dead(client, deadline_ns), none = UINT32_MAX;
    if (dead != none && atomic_compare_exchange_strong(&client->dead_rank, &none, dead)) client->found_dead = 1;
}

void xep_pmix_life_linger(const xep_pmix_client_t *client)
{
    struct timespec time = {0, LINGER_NS};
    if (client->found_dead) nanosleep(&time, NULL);
}
