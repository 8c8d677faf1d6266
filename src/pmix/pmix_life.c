/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Used only when an exchange has failed: finds a rank that has died before it put anything.
 *
 * A rank that leaves because another one has died looks dead itself a little later. So before it leaves, it says whom
 * it has found, and ranks that find it gone go by that.
 */
#include "pmix_life.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backoff.h"
#include "host.h"
#include "pmix_call.h"

enum {
    LINGER_NS = 700000000, /* the others look every half second (pmix_call.c) */
    FOLLOW_NS = 500000000, /* for a server that has just reported something */
    PAUSES = 500,          /* for its answer, too: counted, as all threads of a process may not run for a while */
    PAUSE_NS = 1000000,
    EXIT_REPORT_NS = 2000000000 /* the most that the server may take, as of PMIx_Finalize */
};

/** The process of a rank; written by the rank, read by all. */
typedef struct life {
    uint64_t processes, start; /* xep_host_processes() */
    int32_t pid;
    uint32_t server; /* of_server() */
} life_t;
_Static_assert(sizeof(life_t) == 24, "exchanged as bytes");

/** What a rank leaves behind when it ends after an error; read by ranks that find it gone. */
typedef struct exit_report {
    uint32_t dead; /* rank; UINT32_MAX: it knows of none */
    uint32_t reserved;
} exit_report_t;
_Static_assert(sizeof(exit_report_t) == 8, "exchanged as bytes");

static const char *const life_key = "xep.life", *const exit_report_key = "xep.exit_report";

/* Ranks of one host have one server. Machines resumed from one snapshot have equal names for all else. */
static uint32_t of_server(void)
{
    const char *uri = getenv("PMIX_SERVER_URI2");
    uint32_t sum = 0;
    while (uri != NULL && *uri != '\0') sum = sum * 31 + (unsigned char)*uri++;
    return sum;
}

static life_t own_life(void)
{
    int32_t pid = (int32_t)getpid();
    return (life_t){.processes = xep_host_processes(), .start = xep_host_start(pid), .pid = pid, .server = of_server()};
}

static pmix_status_t put(const xep_pmix_client_t *client, const char *key, void *data, size_t bytes)
{
    pmix_value_t value = {.type = PMIX_BYTE_OBJECT, .data = {.bo = {.bytes = data, .size = bytes}}};
    return client->api->put(PMIX_GLOBAL, key, &value);
}

pmix_status_t xep_pmix_life_put(const xep_pmix_client_t *client)
{
    life_t life = own_life();
    return put(client, life_key, &life, sizeof life);
}

/* PMIX_ERR_NOT_FOUND: the rank has put none so far. */
static pmix_status_t ask(xep_pmix_client_t *client, uint32_t rank, const char *key, void *data, size_t bytes,
                         uint64_t deadline_ns)
{
    xep_pmix_result_t result = xep_pmix_call_ask(client, rank, key, data, bytes, deadline_ns);
    if (!result.done) return PMIX_ERR_TIMEOUT;
    return result.ret == PMIX_SUCCESS && result.bytes != bytes ? PMIX_ERR_BAD_PARAM : result.ret;
}

typedef enum found { UNKNOWN, ABSENT, ALIVE, GONE } found_t;

/* UNKNOWN: the server does not answer, or the kernel here cannot look the process up. */
static found_t find_life(xep_pmix_client_t *client, uint32_t rank, uint64_t deadline_ns)
{
    life_t life;
    pmix_status_t ret = ask(client, rank, life_key, &life, sizeof life, deadline_ns);
    if (ret != PMIX_SUCCESS) return ret == PMIX_ERR_NOT_FOUND ? ABSENT : UNKNOWN;
    if (life.processes != xep_host_processes() || life.server != of_server() || life.pid <= 0) return UNKNOWN;
    return xep_host_process_gone(life.pid, life.start) ? GONE : ALIVE;
}

/*
 * A rank that is gone without a report has died. If there is none, but some have left with a report: the rank that a
 * report names, else one that never came, else the first of those that have left; the last two only if all ranks have
 * been looked at.
 */
static uint32_t find_dead(xep_pmix_client_t *client, uint64_t deadline_ns)
{
    uint32_t found = UINT32_MAX, absent = UINT32_MAX, left = UINT32_MAX, r;
    for (r = 0; r < client->nranks && xep_clock_ns() < deadline_ns; r++) {
        exit_report_t exit_report;
        if (r == client->self.rank) continue;
        found_t life = find_life(client, r, deadline_ns);
        if (life == ABSENT && absent == UINT32_MAX) absent = r;
        if (life != GONE) continue;
        pmix_status_t ret = ask(client, r, exit_report_key, &exit_report, sizeof exit_report, deadline_ns);
        if (ret == PMIX_ERR_TIMEOUT) break;
        if (ret != PMIX_SUCCESS) return r;
        if (left == UINT32_MAX) left = r;
        if (exit_report.dead < client->nranks && exit_report.dead != client->self.rank) found = exit_report.dead;
    }
    if (left == UINT32_MAX || found != UINT32_MAX || r < client->nranks) return found;
    return absent != UINT32_MAX ? absent : left;
}

/* Keeps a dead rank that is known already: on_event() may have noted one meanwhile, on a thread of libpmix. */
void xep_pmix_life_find_dead(xep_pmix_client_t *client, uint64_t deadline_ns)
{
    if (client->boot != NULL && client->boot->ignores_processes) return;
    uint32_t dead = find_dead(client, deadline_ns), none = UINT32_MAX;
    if (dead != none && atomic_compare_exchange_strong(&client->dead_rank, &none, dead)) client->found_dead = 1;
}

int xep_pmix_life_follow(xep_pmix_client_t *client)
{
    const uint32_t reported = atomic_load(&client->dead_rank);
    exit_report_t exit_report;
    if (reported == UINT32_MAX || client->found_dead) return 0;
    if (ask(client, reported, exit_report_key, &exit_report, sizeof exit_report, xep_clock_ns() + FOLLOW_NS) !=
        PMIX_SUCCESS)
        return 0;
    if (exit_report.dead >= client->nranks || exit_report.dead == client->self.rank) return 0;
    atomic_store(&client->dead_rank, exit_report.dead);
    return 1;
}

/* A wait for an answer that a death has ended: the server has it soon. */
static void await_commits(const xep_pmix_client_t *client)
{
    const struct timespec pause = {0, PAUSE_NS};
    if (atomic_load(&client->dead_rank) == UINT32_MAX) return;
    for (int i = 0; client->commits != 0 && i < PAUSES; i++) nanosleep(&pause, NULL);
}

/* If an earlier commit has no answer, this one gets none either. */
void xep_pmix_life_leave(xep_pmix_client_t *client)
{
    struct timespec time = {0, LINGER_NS};
    await_commits(client);
    exit_report_t exit_report = {.dead = atomic_load(&client->dead_rank)};
    xep_pmix_wait_t wait = {.deadline_ns = xep_clock_ns() + EXIT_REPORT_NS, .goes_on = 1};
    if (client->said_exit_report || client->commits != 0) return;
    client->said_exit_report = 1;
    if (put(client, exit_report_key, &exit_report, sizeof exit_report) == PMIX_SUCCESS)
        xep_pmix_call_commit(client, &wait);
    /* if the launcher has reported the dead rank, it reports it to the others, too */
    if (client->found_dead) nanosleep(&time, NULL);
}
