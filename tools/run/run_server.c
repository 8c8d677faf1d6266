/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * libpmix calls back on a thread of its own, and is answered from there; the main thread hears of an abort by a file
 * descriptor that it watches anyway.
 */
#define _GNU_SOURCE

#include "run_server.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include "run.h"
#include "run_names.h"
#include "run_pmix.h"

/* what libpmix (4.2.2) has room for in a node's name: a longer one ends the process */
enum { HOSTNAME_BYTES = 50 };

struct run_server {
    const run_pmix_t *pmix;
    pmix_nspace_t nspace;
    char hostname[HOSTNAME_BYTES]; /* of the only node, so a part of the name serves */
    uint32_t nranks;
    int abort_fd;             /* readable after an abort */
    _Atomic int abort_status; /* valid once abort_fd is readable, as is the rank */
    _Atomic uint32_t abort_rank;
    _Atomic uint8_t *finalized; /* [nranks] said goodbye */
};

/* ---- what the library asks of its host; on a thread of the library, which must not block -------------- */

/*
 * There is nothing to check here: a rank connects over TCP, and libpmix (4.2.2) gives its host neither the socket nor a
 * credential (ninfo is 0); it has compared the user id that the rank claims. A rank proves itself by knowing the name
 * of the job.
 */
static pmix_status_t on_connected(const pmix_proc_t *proc, void *object, pmix_info_t info[], size_t ninfo,
                                  pmix_op_cbfunc_t done, void *arg)
{
    (void)proc, (void)object, (void)info, (void)ninfo, (void)done, (void)arg;
    return PMIX_OPERATION_SUCCEEDED;
}

/* A rank that ends without this has not said goodbye: its end is an event for the others even where its status is 0. */
static pmix_status_t on_finalized(const pmix_proc_t *proc, void *object, pmix_op_cbfunc_t done, void *arg)
{
    run_server_t *server = object;
    (void)done, (void)arg;
    if (server != NULL && proc->rank < server->nranks) atomic_store(&server->finalized[proc->rank], 1);
    return PMIX_OPERATION_SUCCEEDED;
}

/* Rank and status first, then the descriptor: whoever reads it finds both. object is what register_rank() has given. */
static pmix_status_t on_abort(const pmix_proc_t *proc, void *object, int status, const char message[],
                              pmix_proc_t procs[], size_t nprocs, pmix_op_cbfunc_t done, void *arg)
{
    run_server_t *server = object;
    uint64_t one = 1;
    (void)message, (void)procs, (void)nprocs, (void)done, (void)arg;
    if (server == NULL) return PMIX_ERR_NOT_SUPPORTED;
    atomic_store(&server->abort_rank, proc->rank);
    atomic_store(&server->abort_status, status);
    return write(server->abort_fd, &one, sizeof one) < 0 ? PMIX_ERROR : PMIX_OPERATION_SUCCEEDED;
}

/*
 * A fence of one machine has only one server in it, so the data that libpmix has collected is all there is. It was
 * handed over to us: done() is told how to free it.
 */
static pmix_status_t on_fence(const pmix_proc_t procs[], size_t nprocs, const pmix_info_t info[], size_t ninfo,
                              char *data, size_t bytes, pmix_modex_cbfunc_t done, void *arg)
{
    (void)procs, (void)nprocs, (void)info, (void)ninfo;
    if (done != NULL) done(PMIX_SUCCESS, data, bytes, arg, free, data);
    return PMIX_SUCCESS;
}

/* asked for the data of ranks elsewhere, of which there are none */
static pmix_status_t on_direct_modex(const pmix_proc_t *proc, const pmix_info_t info[], size_t ninfo,
                                     pmix_modex_cbfunc_t done, void *arg)
{
    (void)proc, (void)info, (void)ninfo, (void)done, (void)arg;
    return PMIX_ERR_NOT_FOUND;
}

/* Events come from this server and go to all ranks, so registering for one needs no work. */
static pmix_status_t on_register_events(pmix_status_t *codes, size_t ncodes, const pmix_info_t info[], size_t ninfo,
                                        pmix_op_cbfunc_t done, void *arg)
{
    (void)codes, (void)ncodes, (void)info, (void)ninfo, (void)done, (void)arg;
    return PMIX_OPERATION_SUCCEEDED;
}

static pmix_status_t on_deregister_events(pmix_status_t *codes, size_t ncodes, pmix_op_cbfunc_t done, void *arg)
{
    (void)codes, (void)ncodes, (void)done, (void)arg;
    return PMIX_OPERATION_SUCCEEDED;
}

static pmix_status_t on_notify_event(pmix_status_t code, const pmix_proc_t *source, pmix_data_range_t range,
                                     pmix_info_t info[], size_t ninfo, pmix_op_cbfunc_t done, void *arg)
{
    (void)code, (void)source, (void)range, (void)info, (void)ninfo, (void)done, (void)arg;
    return PMIX_OPERATION_SUCCEEDED;
}

/* A newer library than the one this was compiled with copies more than its headers' struct: the rest is zero. */
typedef union host {
    pmix_server_module_t module;
    char room[4096];
} host_t;

static host_t host = {.module = {.client_connected2 = on_connected,
                                 .client_finalized = on_finalized,
                                 .abort = on_abort,
                                 .fence_nb = on_fence,
                                 .direct_modex = on_direct_modex,
                                 .publish = run_names_publish,
                                 .unpublish = run_names_unpublish,
                                 .lookup = run_names_lookup,
                                 .register_events = on_register_events,
                                 .deregister_events = on_deregister_events,
                                 .notify_event = on_notify_event}};

/* ---- calls whose end a callback tells ------------------------------------------------------------- */

typedef struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    int done;
    pmix_status_t status;
} waiter_t;

#define WAITER_INIT                                                          \
    {                                                                        \
        PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, PMIX_SUCCESS \
    }

/*
 * On a thread of libpmix. Signals with the lock held: the waiter is on the stack of the waiting thread, and may be gone
 * as soon as the lock is free.
 */
static void waiter_wake(pmix_status_t status, void *arg)
{
    waiter_t *waiter = arg;
    pthread_mutex_lock(&waiter->lock);
    waiter->status = status;
    waiter->done = 1;
    pthread_cond_signal(&waiter->cond);
    pthread_mutex_unlock(&waiter->lock);
}

/* the status of a call that returned begun and wakes the waiter unless it is over already */
static pmix_status_t waiter_wait(waiter_t *waiter, pmix_status_t begun)
{
    if (begun == PMIX_OPERATION_SUCCEEDED) return PMIX_SUCCESS;
    if (begun != PMIX_SUCCESS) return begun;
    pthread_mutex_lock(&waiter->lock);
    while (!waiter->done) pthread_cond_wait(&waiter->cond, &waiter->lock);
    pthread_mutex_unlock(&waiter->lock);
    return waiter->status;
}

/* ---- what the ranks can ask about the job --------------------------------------------------------- */

/* "0,1,..,n-1" */
static char *list_ranks(uint32_t nranks)
{
    char *text = NULL;
    size_t bytes;
    FILE *stream = open_memstream(&text, &bytes);
    if (stream == NULL) return NULL;
    for (uint32_t i = 0; i < nranks; i++) fprintf(stream, i == 0 ? "%u" : ",%u", i);
    return fclose(stream) == 0 ? text : NULL;
}

static void set_u32(const run_pmix_t *pmix, pmix_info_t *info, const char *key, uint32_t value)
{
    run_pmix_info_set(pmix, info, key, &value, PMIX_UINT32);
}

enum { RANK_INFOS = 7 };

/* A rank has one number: in the job, in its only program, on its only machine. 4096 ranks fit in 16 bits. */
static void set_rank(const run_pmix_t *pmix, pmix_info_t *info, uint32_t rank, const char *hostname)
{
    pmix_info_t infos[RANK_INFOS];
    pmix_rank_t id = rank;
    uint16_t local = (uint16_t)rank;
    memset(infos, 0, sizeof infos);
    run_pmix_info_set(pmix, &infos[0], PMIX_RANK, &id, PMIX_PROC_RANK); /* first: the library asks for it */
    run_pmix_info_set(pmix, &infos[1], PMIX_GLOBAL_RANK, &id, PMIX_PROC_RANK);
    run_pmix_info_set(pmix, &infos[2], PMIX_APP_RANK, &id, PMIX_PROC_RANK);
    run_pmix_info_set(pmix, &infos[3], PMIX_LOCAL_RANK, &local, PMIX_UINT16);
    run_pmix_info_set(pmix, &infos[4], PMIX_NODE_RANK, &local, PMIX_UINT16);
    run_pmix_info_set(pmix, &infos[5], PMIX_HOSTNAME, hostname, PMIX_STRING);
    set_u32(pmix, &infos[6], PMIX_NODEID, 0);
    pmix_data_array_t array = {.type = PMIX_INFO, .size = RANK_INFOS, .array = infos};
    run_pmix_info_set(pmix, info, PMIX_PROC_INFO_ARRAY, &array, PMIX_DATA_ARRAY); /* a deep copy */
    run_pmix_infos_clear(pmix, infos, RANK_INFOS);
}

enum { JOB_INFOS = 10 };

/*
 * list: of list_ranks(). libpmix makes the two maps, here of one node that has all ranks. It allocates their texts,
 * which are freed here, as infos get copies. On failure nothing was written to infos.
 */
static pmix_status_t set_job(const run_pmix_t *pmix, pmix_info_t *infos, uint32_t nranks, const char *hostname,
                             const char *list)
{
    static const char *const sizes[5] = {PMIX_JOB_SIZE, PMIX_UNIV_SIZE, PMIX_MAX_PROCS, PMIX_LOCAL_SIZE,
                                         PMIX_NODE_SIZE};
    char *nodes = NULL, *ranks = NULL;
    pmix_status_t status = pmix->generate_regex(hostname, &nodes);
    if (status == PMIX_SUCCESS) status = pmix->generate_ppn(list, &ranks);
    if (status == PMIX_SUCCESS) {
        for (size_t i = 0; i < 5; i++) set_u32(pmix, &infos[i], sizes[i], nranks);
        set_u32(pmix, &infos[5], PMIX_NUM_NODES, 1);
        set_u32(pmix, &infos[6], PMIX_JOB_NUM_APPS, 1);
        run_pmix_info_set(pmix, &infos[7], PMIX_LOCAL_PEERS, list, PMIX_STRING);
        run_pmix_info_set(pmix, &infos[8], PMIX_NODE_MAP, nodes, PMIX_REGEX);
        run_pmix_info_set(pmix, &infos[9], PMIX_PROC_MAP, ranks, PMIX_REGEX);
    }
    free(nodes);
    free(ranks);
    return status;
}

/* All that ranks may ask about the job is given before the first of them starts. */
static pmix_status_t register_job(run_server_t *server)
{
    const run_pmix_t *pmix = server->pmix;
    waiter_t waiter = WAITER_INIT;
    pmix_status_t status = PMIX_ERR_NOMEM;
    size_t ninfos = JOB_INFOS + (size_t)server->nranks;
    char *list = list_ranks(server->nranks);
    pmix_info_t *infos = calloc(ninfos, sizeof *infos);
    if (list == NULL || infos == NULL) goto out;
    status = set_job(pmix, infos, server->nranks, server->hostname, list);
    if (status != PMIX_SUCCESS) goto out;
    for (uint32_t i = 0; i < server->nranks; i++) set_rank(pmix, &infos[JOB_INFOS + i], i, server->hostname);
    status = pmix->server_register_nspace(server->nspace, (int)server->nranks, infos, ninfos, waiter_wake, &waiter);
    status = waiter_wait(&waiter, status);
out:
    if (infos != NULL) run_pmix_infos_clear(pmix, infos, ninfos);
    free(infos);
    free(list);
    return status;
}

static pmix_status_t register_rank(run_server_t *server, uint32_t rank)
{
    waiter_t waiter = WAITER_INIT;
    pmix_proc_t proc = run_pmix_proc(server->nspace, rank);
    return waiter_wait(&waiter,
                       server->pmix->server_register_client(&proc, geteuid(), getegid(), server, waiter_wake, &waiter));
}

/* Files go to the folder of the job, which is removed with it. Only a PMIx that came with xep_run has a prefix. */
static pmix_status_t start(const run_server_t *server, const char *dir)
{
    const run_pmix_t *pmix = server->pmix;
    const char *prefix = run_pmix_prefix(pmix);
    pmix_info_t infos[4];
    size_t ninfos = prefix == NULL ? 3 : 4;
    memset(infos, 0, sizeof infos);
    run_pmix_info_set(pmix, &infos[0], PMIX_SERVER_TMPDIR, dir, PMIX_STRING);
    run_pmix_info_set(pmix, &infos[1], PMIX_SYSTEM_TMPDIR, dir, PMIX_STRING);
    run_pmix_info_set(pmix, &infos[2], PMIX_HOSTNAME, server->hostname, PMIX_STRING);
    if (prefix != NULL) run_pmix_info_set(pmix, &infos[3], PMIX_PREFIX, prefix, PMIX_STRING);
    pmix_status_t status = run_pmix_serve(pmix, &host.module, infos, ninfos);
    run_pmix_infos_clear(pmix, infos, ninfos);
    return status;
}

/* ---- the server ------------------------------------------------------------------------------------- */

/* There is no close, also after a failure: a server lives as long as the process, as PMIx cannot be ended safely. */
static run_server_t *allocate(uint32_t nranks)
{
    static run_server_t server; /* there is one job */
    server.nranks = nranks;
    server.finalized = calloc(nranks, sizeof *server.finalized);
    server.abort_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return server.finalized != NULL && server.abort_fd >= 0 ? &server : NULL;
}

/*
 * A process that knows the name of a job and the server's port can claim to be a rank: so the name cannot be guessed,
 * and is in no listing that other users can see.
 */
static int name_job(char *nspace)
{
    uint64_t secret[2];
    if (getrandom(secret, sizeof secret, 0) != (ssize_t)sizeof secret) return -1;
    snprintf(nspace, PMIX_MAX_NSLEN, "xep_run.%016" PRIx64 "%016" PRIx64, secret[0], secret[1]);
    return 0;
}

/* Cut off by gethostname() where it is too long, and then without its final 0. */
static void name_host(char *hostname)
{
    gethostname(hostname, HOSTNAME_BYTES - 1);
    if (hostname[0] == '\0') snprintf(hostname, HOSTNAME_BYTES, "localhost");
}

/*
 * libpmix, then the job, then each of its ranks: a rank may connect as soon as it runs, so all is known before the
 * first one is started. What is there when this fails stays: xep_run ends.
 */
int run_server_open(uint32_t nranks, const char *dir, run_server_t **server_p)
{
    run_server_t *server = allocate(nranks);
    if (server == NULL) {
        run_say("out of memory or file descriptors");
        return -1;
    }
    if (name_job(server->nspace) != 0) {
        run_say("cannot name the job: %s", strerror(errno));
        return -1;
    }
    name_host(server->hostname);
    server->pmix = run_pmix_load();
    if (server->pmix == NULL) return -1;
    pmix_status_t status = start(server, dir);
    if (status == PMIX_SUCCESS) status = register_job(server);
    for (uint32_t i = 0; i < nranks && status == PMIX_SUCCESS; i++) status = register_rank(server, i);
    if (status == PMIX_SUCCESS) {
        *server_p = server;
        return 0;
    }
    /* no finalize: see the end of main() */
    const char *setting = run_environ_find("PMIX_MCA_");
    run_say("cannot start a PMIx server: %s (%s%s)", server->pmix->error_string(status),
            setting == NULL ? "it needs the loopback interface" : "perhaps for ", setting == NULL ? "" : setting);
    return -1;
}

/* By the main thread, before each fork. libpmix puts in how to reach the server; env may have moved then. */
int run_server_environ(run_server_t *server, uint32_t rank, char ***env)
{
    pmix_proc_t proc = run_pmix_proc(server->nspace, rank);
    pmix_status_t status = server->pmix->server_setup_fork(&proc, env);
    if (status == PMIX_SUCCESS) return 0;
    run_say("cannot make the environment of rank %u: %s", rank, server->pmix->error_string(status));
    return -1;
}

/*
 * Waited for, so that infos may lie on the stack. A rank that reads the event learns which one died, and need not wait
 * for its own deadline.
 */
static void notify(const run_server_t *server, uint32_t rank, pmix_status_t code, int exit_status)
{
    const run_pmix_t *pmix = server->pmix;
    pmix_proc_t proc = run_pmix_proc(server->nspace, rank);
    waiter_t waiter = WAITER_INIT;
    pmix_info_t infos[2];
    memset(infos, 0, sizeof infos);
    run_pmix_info_set(pmix, &infos[0], PMIX_EVENT_AFFECTED_PROC, &proc, PMIX_PROC);
    run_pmix_info_set(pmix, &infos[1], PMIX_EXIT_CODE, &exit_status, PMIX_INT);
    waiter_wait(&waiter, pmix->notify_event(code, &proc, PMIX_RANGE_NAMESPACE, infos, 2, waiter_wake, &waiter));
    run_pmix_infos_clear(pmix, infos, 2);
}

/* Reports how a rank has ended to the others: by a signal, with a status, or well but without PMIx_Finalize. */
void run_server_rank_ended(run_server_t *server, uint32_t rank, int wait_status)
{
    run_names_forget(rank);
    if (WIFSIGNALED(wait_status)) notify(server, rank, PMIX_ERR_PROC_ABORTED_BY_SIG, WTERMSIG(wait_status));
    else if (WEXITSTATUS(wait_status) != 0) notify(server, rank, PMIX_ERR_EXIT_NONZERO_TERM, WEXITSTATUS(wait_status));
    else if (!atomic_load(&server->finalized[rank])) notify(server, rank, PMIX_ERR_PROC_TERM_WO_SYNC, 0);
}

int run_server_abort_fd(const run_server_t *server)
{
    return server->abort_fd;
}

/* Reading sets the descriptor back, so that the next poll() waits; it does not block where nothing is there. */
void run_server_abort_read(run_server_t *server, uint32_t *rank_p, int *status_p)
{
    uint64_t count;
    if (read(server->abort_fd, &count, sizeof count) < 0) count = 0;
    *rank_p = atomic_load(&server->abort_rank);
    *status_p = atomic_load(&server->abort_status);
}
