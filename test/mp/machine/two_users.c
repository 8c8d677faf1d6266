/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * two_users COMMAND...: two ranks, the second of which COMMAND starts, as another user perhaps. No launcher: a pair of
 * sockets is their bootstrap.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mp_rig.h"

typedef struct pair {
    int fd;
    uint32_t rank;
} pair_t;

static int gather(void *arg, const void *send, void *recv, size_t bytes)
{
    const pair_t *pair = arg;
    char *own = (char *)recv + pair->rank * bytes, *other = (char *)recv + (1 - pair->rank) * bytes;
    memcpy(own, send, bytes);
    if (write(pair->fd, send, bytes) != (ssize_t)bytes) return -1;
    for (size_t done = 0; done < bytes;) {
        ssize_t got = read(pair->fd, other + done, bytes - done);
        if (got <= 0) return -1;
        done += (size_t)got;
    }
    return 0;
}

static int run_rank(pair_t pair)
{
    xep_group_params_t params = XEP_GROUP_PARAMS_INIT;
    xep_group_t *group;
    uint32_t all[2];
    params.rank = pair.rank, params.nranks = 2, params.allgather = gather, params.allgather_ctx = &pair;
    MP_OK(xep_group_create(&params, &group));
    MP_OK(xep_group_allgather(group, &pair.rank, all, sizeof all[0]));
    MP_CHECK(all[0] == 0 && all[1] == 1);
    printf("rank %u: %u nodes\n", pair.rank, mp_group_info(group).nnodes);
    xep_group_destroy(group);
    return 0;
}

/* this program again, by the words of a command */
static void start_second(int fd, int words, char **command)
{
    char number[16], path[4096], **line = calloc((size_t)words + 4, sizeof *line);
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    MP_CHECK(line != NULL && length > 0);
    path[length] = '\0';
    snprintf(number, sizeof number, "%d", fd);
    memcpy(line, command, (size_t)words * sizeof *line);
    line[words] = path, line[words + 1] = "second", line[words + 2] = number;
    execvp(line[0], line);
    perror(line[0]);
    _exit(127);
}

int main(int argc, char **argv)
{
    int fds[2], status;
    if (argc == 3 && strcmp(argv[1], "second") == 0) return run_rank((pair_t){atoi(argv[2]), 1});
    MP_CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    pid_t second = fork();
    MP_CHECK(second >= 0);
    if (second == 0) {
        close(fds[0]);
        start_second(fds[1], argc - 1, argv + 1);
    }
    close(fds[1]);
    run_rank((pair_t){fds[0], 0});
    MP_CHECK(waitpid(second, &status, 0) == second && status == 0);
    return 0;
}
