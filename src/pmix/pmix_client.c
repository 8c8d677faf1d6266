/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * This process as a PMIx client: how it becomes one, and how it hears of dead ranks.
 *
 * What can go wrong:
 *  - After a second PMIx_Init in a process, launchers over several nodes hang at the end; so the client stays open
 *    until the process exits. Slurm ends the step when a process exits without PMIx_Finalize.
 *  - With its server gone, PMIx_Init leaves a state in which PMIx_Finalize crashes: it is not called then.
 *  - Two processes with one PMIX_RANK both get PMIX_SUCCESS, and then wrong answers.
 *  - If MPI finds no launcher of its own, it replaces PMIX_NAMESPACE by that of a singleton job.
 */
#define _GNU_SOURCE
#include "pmix_client.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "backoff.h"
#include "boot.h"
#include "error.h"
#include "hash.h"
#include "log.h"
#include "pmix_call.h"
#include "process.h"

/* a process has one PMIx, whoever uses it, and so one of these */
static struct {
    pthread_mutex_t lock; /* of opening */
    int opened;           /* tried: status and reason are the result */
    xep_status_t status;
    char reason[XEP_REASON_BYTES];
    xep_pmix_client_t client;
} process = {.lock = PTHREAD_MUTEX_INITIALIZER, .client = {.lock = PTHREAD_MUTEX_INITIALIZER, .dead_rank = UINT32_MAX}};

/* ---- events ------------------------------------------------------------------------- */

/* Keeps the first dead rank: later ones mostly died because of it. */
static void note_dead(xep_pmix_client_t *client, const pmix_proc_t *proc)
{
    uint32_t none = UINT32_MAX;
    if (strncmp(proc->nspace, client->self.nspace, PMIX_MAX_NSLEN) != 0) return;
    if (proc->rank >= client->nranks || proc->rank == client->self.rank) return;
    if (atomic_compare_exchange_strong(&client->dead_rank, &none, proc->rank))
        xep_log(XEP_LOG_INFO, "the launcher reports rank %u dead", proc->rank);
}

/* runs on a thread of the library; the rank is among the infos, or else it is the source */
static void on_event(size_t id, pmix_status_t code, const pmix_proc_t *source, pmix_info_t infos[], size_t ninfos,
                     pmix_info_t *results, size_t nresults, pmix_event_notification_cbfunc_fn_t done, void *arg)
{
    const pmix_proc_t *proc = source;
    (void)id, (void)code, (void)results, (void)nresults;
    for (size_t i = 0; i < ninfos; i++)
        if (strncmp(infos[i].key, PMIX_EVENT_AFFECTED_PROC, PMIX_MAX_KEYLEN) == 0 && infos[i].value.type == PMIX_PROC)
            proc = infos[i].value.data.proc;
    if (proc != NULL) note_dead(&process.client, proc);
    if (done != NULL) done(PMIX_EVENT_ACTION_COMPLETE, NULL, 0, NULL, NULL, arg);
}

/* Slurm refuses; mpirun accepts but never reports: then a dead rank shows only at the deadline of a wait */
static void on_registered(pmix_status_t ret, size_t id, void *arg)
{
    (void)id, (void)arg;
    if (ret != PMIX_SUCCESS)
        xep_log(XEP_LOG_DEBUG, "the launcher does not report dead ranks: %s", process.client.api->error_string(ret));
}

/* Does not wait for the answer, which comes to on_registered(): a refusal is no error. */
static void watch_for_deaths(const xep_pmix_client_t *client)
{
    static pmix_status_t codes[] = {PMIX_ERR_PROC_ABORTED_BY_SIG,  PMIX_ERR_EXIT_NONZERO_TERM,
                                    PMIX_ERR_PROC_TERM_WO_SYNC,    PMIX_ERR_PROC_KILLED_BY_CMD,
                                    PMIX_ERR_PROC_REQUESTED_ABORT, PMIX_ERR_LOST_CONNECTION};
    client->api->register_event_handler(codes, sizeof codes / sizeof codes[0], NULL, 0, on_event, on_registered, NULL);
}

/* ---- opening ------------------------------------------------------------------------ */

/* A namespace may be longer than the name of a socket. */
static uint64_t hash(const char *text)
{
    return xep_hash_bytes(XEP_HASH_BEGIN, text, strlen(text));
}

/*
 * Whether the socket of that name belongs to this user: another user who takes the name must not keep xep from
 * starting.
 */
static int is_taken_by_us(const struct sockaddr_un *address, socklen_t bytes)
{
    struct ucred owner = {.uid = (uid_t)-1};
    socklen_t size = sizeof owner;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return 0;
    int known = connect(fd, (const struct sockaddr *)address, bytes) == 0 &&
                getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &owner, &size) == 0;
    close(fd);
    return known && owner.uid == geteuid();
}

/*
 * Claims a rank: a socket name that only one process of a host can have, until it ends. Processes that share a rank
 * (say, workers of torchrun that a rank has started) are on one host.
 */
static xep_status_t claim_rank(const char *nspace, const char *rank)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX}; /* sun_path[0] is 0: no file */
    int length = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "xep.pmix.%lu.%016lx.%.16s",
                          (unsigned long)getuid(), (unsigned long)hash(nspace), rank);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return XEP_OK; /* only a safeguard: without sockets there is no PMIx either */
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
    /* listens, so that others can ask whose it is; open until the process ends */
    if (bind(fd, (const struct sockaddr *)&address, bytes) == 0 && listen(fd, SOMAXCONN) == 0) return XEP_OK;
    close(fd);
    if (!is_taken_by_us(&address, bytes)) return XEP_OK;
    return xep_fail(XEP_ERR_BOOT,
                    "another process uses PMIx as rank %s of %s: this one has inherited its environment; start each "
                    "rank by the launcher, or pass an allgather to xep_group_create() (under torchrun: one over "
                    "torch.distributed)",
                    rank, nspace);
}

/*
 * The name of the file that says that a program of this task has made a group; 0: the server has named no folder. The
 * name includes the server's port, since a killed server leaves its folder, and a later server may have the same folder
 * and namespace.
 */
static int make_mark_path(const char *nspace, const char *rank, char *path, size_t bytes)
{
    const char *folder = getenv("PMIX_SERVER_TMPDIR"), *uri = getenv("PMIX_SERVER_URI2");
    const char *port = uri == NULL ? NULL : strrchr(uri, ':');
    if (folder == NULL) return 0;
    int length = snprintf(path, bytes, "%s/xep.%.200s.%.8s.%.16s", folder, nspace, port == NULL ? "" : port + 1, rank);
    return length > 0 && (size_t)length < bytes;
}

/* Files of another user or kind are ignored. */
static xep_status_t check_mark(const char *nspace, const char *rank)
{
    char path[PATH_MAX];
    struct stat mark;
    if (!make_mark_path(nspace, rank, path, sizeof path) || lstat(path, &mark) != 0) return XEP_OK;
    if (!S_ISREG(mark.st_mode) || mark.st_uid != geteuid()) return XEP_OK;
    return xep_fail(XEP_ERR_BOOT,
                    "an earlier program of this task has made a group as rank %s of %s, and the launcher's server "
                    "keeps what it sent (start each program by a launch of its own)",
                    rank, nspace);
}

/* the first setting of PMIx in the environment, "PMIX_MCA_...=...", or NULL */
static const char *find_setting(void)
{
    for (char **entry = environ; *entry != NULL; entry++)
        if (strncmp(*entry, "PMIX_MCA_", strlen("PMIX_MCA_")) == 0) return *entry;
    return NULL;
}

/* libpmix says only that the server cannot be reached; a living server has a folder. */
static xep_status_t tell_unreachable(const char *nspace)
{
    const char *folder = getenv("PMIX_SERVER_TMPDIR"), *setting = find_setting();
    struct stat server;
    if (folder == NULL || stat(folder, &server) != 0)
        return xep_fail(XEP_ERR_BOOT,
                        "PMIX_NAMESPACE is %s, but the server of that job does not answer: its launcher has ended, or "
                        "this environment was inherited; unset PMIX_NAMESPACE to run outside the job",
                        nspace);
    if (server.st_uid != geteuid())
        return xep_fail(XEP_ERR_BOOT,
                        "PMIX_NAMESPACE is %s, but the server of that job refuses this process: it is of user %u, the "
                        "server of user %u (start the job as the user that its ranks are to be)",
                        nspace, (unsigned)geteuid(), (unsigned)server.st_uid);
    return xep_fail(XEP_ERR_BOOT,
                    "PMIX_NAMESPACE is %s, but the server of that job cannot be reached, though its folder %.200s is "
                    "there: this process is in another network or user namespace, or the launcher was killed%s%.100s",
                    nspace, folder,
                    setting == NULL ? "" : ", or they differ in settings of PMIx: ", setting == NULL ? "" : setting);
}

/* used_before: something else in this process had initialised PMIx */
static xep_status_t check_init(const xep_pmix_client_t *client, pmix_status_t ret, int used_before, const char *nspace,
                               const char *rank)
{
    int other = strncmp(client->self.nspace, nspace, PMIX_MAX_NSLEN) != 0;
    if (other && used_before)
        return xep_fail(XEP_ERR_BOOT,
                        "PMIX_NAMESPACE is %s, but PMIx is in use in this process as %s: what initialised it first "
                        "(MPI?) did so outside the job; create the group before that, or pass an allgather",
                        nspace, client->self.nspace);
    if (other || ret == PMIX_ERR_UNREACH) return tell_unreachable(nspace);
    if (ret != PMIX_SUCCESS)
        return xep_fail(XEP_ERR_BOOT, "PMIx_Init as rank %s of %s: %s", rank, nspace, client->api->error_string(ret));
    return XEP_OK;
}

/* Checks the server's answer, as every rank index depends on it. */
static xep_status_t check_size(const xep_pmix_client_t *client, pmix_status_t ret)
{
    if (ret != PMIX_SUCCESS)
        return xep_fail(XEP_ERR_BOOT, "the PMIx server does not tell the number of ranks: %s",
                        client->api->error_string(ret));
    if (client->self.rank < client->nranks) return XEP_OK;
    return xep_fail(XEP_ERR_BOOT, "the PMIx server says rank %u of %u ranks", client->self.rank, client->nranks);
}

static xep_status_t start(xep_pmix_client_t *client, int32_t timeout_ms, const char *nspace, const char *rank)
{
    /* before PMIx_Init, which makes it true */
    int used_before = client->api->initialized();
    xep_pmix_wait_t wait = {.deadline_ns = xep_deadline(timeout_ms)};
    xep_watch_outside("xep: asked what it waits for: PMIx_Init, the answer of the launcher's server\n");
    xep_pmix_result_t init = xep_pmix_call_init(client, &wait), size = init;
    if (init.done && init.ret == PMIX_SUCCESS)
        size =
            xep_pmix_call_get(client, PMIX_RANK_WILDCARD, PMIX_JOB_SIZE, &client->nranks, sizeof client->nranks, &wait);
    xep_watch_outside(NULL);
    if (!size.done)
        return xep_fail(XEP_ERR_TIMEOUT,
                        "as rank %s of %s: the launcher's PMIx server has not answered PMIx_Init within %d ms (it is "
                        "stopped, or hangs)",
                        rank, nspace, timeout_ms);
    if (init.ret == PMIX_ERR_NOMEM) return xep_fail(XEP_ERR_NO_MEMORY, "no memory, or no thread, for PMIx_Init");
    xep_status_t status = check_init(client, init.ret, used_before, nspace, rank);
    return status == XEP_OK ? check_size(client, size.ret) : status;
}

/*
 * The rank is claimed before PMIx_Init, which would accept a second process of the same rank. The mark is checked
 * before it, too: servers of 4.2.2 do not always answer PMIx_Init in the second program of a task (8 of 195 jobs).
 */
static xep_status_t open_as(xep_pmix_client_t *client, int32_t timeout_ms, int for_group, const char *nspace,
                            const char *rank)
{
    client->api = xep_pmix_api();
    if (client->api == NULL)
        return xep_fail(
            XEP_ERR_BOOT,
            "started by a launcher as rank %s of %s, but there is no PMIx to reach it: %s (on Debian and Ubuntu: "
            "apt-get install libpmix2; elsewhere: name the folder of libpmix.so.2 in LD_LIBRARY_PATH)",
            rank, nspace, xep_pmix_api_path());
    xep_status_t status = claim_rank(nspace, rank);
    if (status == XEP_OK && for_group) status = check_mark(nspace, rank);
    return status == XEP_OK ? start(client, timeout_ms, nspace, rank) : status;
}

/*
 * A forked child runs the exit handlers, too. libpmix waits at most 2 s here; if a commit was given up, its thread is
 * still in libpmix.
 */
static void finalize(void)
{
    if (process.client.pid == getpid() && process.client.commits == 0) process.client.api->finalize(NULL, 0);
}

/*
 * Keeps this library loaded if the program calls dlclose(): PMIx may call on_event() until the process ends, and a
 * thread may be in PMIx_Init.
 */
static void stay_loaded(void)
{
    dlopen(xep_loaded_from(&process), RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
}

static xep_status_t open_once(xep_pmix_client_t *client, int32_t timeout_ms, int for_group)
{
    const char *nspace = getenv("PMIX_NAMESPACE"), *rank = getenv("PMIX_RANK");
    if (nspace == NULL || rank == NULL)
        return xep_fail(XEP_ERR_UNSUPPORTED, "no launcher that serves PMIx has started this process: PMIX_NAMESPACE "
                                             "and PMIX_RANK are not set");
    stay_loaded();
    xep_status_t status = xep_secure_check("PMIX_"); /* libpmix loads components from the folders they name */
    if (status == XEP_OK) status = open_as(client, timeout_ms, for_group, nspace, rank);
    if (status != XEP_OK) return status;
    /* only now: after a failed PMIx_Init, PMIx_Finalize is not called, as the head of this file says */
    client->pid = getpid();
    atexit(finalize);
    watch_for_deaths(client);
    return XEP_OK;
}

/* All later calls return the result of the first: PMIx cannot be initialised twice. */
xep_status_t xep_pmix_client_open(int32_t timeout_ms, int for_group, xep_pmix_client_t **client_p)
{
    xep_pmix_client_t *client = &process.client;
    pthread_mutex_lock(&process.lock);
    if (!process.opened) {
        process.status = open_once(client, timeout_ms, for_group);
        snprintf(process.reason, sizeof process.reason, "%s", process.status == XEP_OK ? "" : xep_last_error());
        /* a process without a launcher may still get the environment of one */
        process.opened = process.status != XEP_ERR_UNSUPPORTED;
    }
    xep_status_t status = process.status;
    pthread_mutex_unlock(&process.lock);
    if (status != XEP_OK) return xep_fail(status, "%s", process.reason);
    if (client->pid != getpid())
        return xep_fail(XEP_ERR_BOOT,
                        "this process was forked from rank %u (only that rank can use its connection to PMIx)",
                        client->self.rank);
    *client_p = client;
    return XEP_OK;
}

/* If there can be no mark, goes on without. */
xep_status_t xep_pmix_client_mark(const xep_pmix_client_t *client)
{
    const char *nspace = client->self.nspace;
    char path[PATH_MAX], rank[16];
    snprintf(rank, sizeof rank, "%u", client->self.rank);
    if (client->nranks == 1 || !make_mark_path(nspace, rank, path, sizeof path)) return XEP_OK;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return check_mark(nspace, rank);
    close(fd);
    return XEP_OK;
}
