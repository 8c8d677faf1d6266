/* SPDX-License-Identifier: BSD-3-Clause */

/* Who is alive on this host: a process is neither taken for gone nor for another one. */

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host.h"
#include "unit.h"

/* in clock ticks since boot, as the kernel counts them: of this process, not after now */
TEST(start_is_a_time)
{
    double uptime = 0;
    FILE *f = fopen("/proc/uptime", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%lf", &uptime), 1);
    fclose(f);
    double begun = (double)xep_host_start((int32_t)getpid()) / (double)sysconf(_SC_CLK_TCK);
    assert_true(begun <= uptime + 1 && begun > uptime - 3600);
}

TEST(start_stays)
{
    uint64_t start = xep_host_start((int32_t)getpid());
    char *memory = malloc(64 << 20);
    assert_non_null(memory);
    memset(memory, 1, 64 << 20);
    prctl(PR_SET_NAME, "a) b (c) 1 2 3");
    assert_int_equal(xep_host_start((int32_t)getpid()), start);
    assert_int_equal(xep_host_process_gone((int32_t)getpid(), start), 0);
    assert_int_equal(xep_host_process_gone((int32_t)getpid(), start + 1), 1);
    free(memory);
}

TEST(child_ends)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        pause();
        _exit(0);
    }
    uint64_t start = xep_host_start((int32_t)child);
    siginfo_t info;
    assert_int_equal(xep_host_process_gone((int32_t)child, start), 0);
    kill(child, SIGKILL);
    assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
    assert_int_equal(xep_host_process_gone((int32_t)child, start), 1); /* not yet reaped */
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(xep_host_process_gone((int32_t)child, start), 1);
    assert_int_equal(xep_host_start((int32_t)child), 0);
}

TEST(identity_is_one)
{
    assert_true(xep_host_identity() != 0);
    assert_true(xep_host_identity() == xep_host_identity());
    assert_true(xep_host_processes() != 0);
    assert_true(xep_host_processes() == xep_host_processes());
    assert_true(xep_host_processes() != xep_host_identity());
}
