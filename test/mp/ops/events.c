/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 1 2, brief: 2 */

/* An event loop: requests of two buffers are tested only when the descriptor says so, and end all the same. */

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "mp_job.h"
#include "mp_rig.h"

enum { ROUNDS = 20, LONG_MS = 20 * 1000, LATE_US = 5000 };

/* Returns how often the loop slept. */
static int finish_by_events(int fd, xep_request_t *const req[2])
{
    int open[2] = {1, 1}, sleeps = 0;
    for (;;) {
        for (int i = 0; i < 2; i++) {
            xep_status_t status = open[i] ? xep_request_test(req[i]) : XEP_OK;
            if (status == XEP_INPROGRESS) continue;
            MP_OK(status);
            open[i] = 0;
        }
        if (!open[0] && !open[1]) return sleeps;
        struct pollfd polled = {.fd = fd, .events = POLLIN};
        uint64_t events;
        MP_CHECK(poll(&polled, 1, LONG_MS) == 1 && read(fd, &events, sizeof events) == sizeof events && events > 0);
        sleeps++;
    }
}

/* Rank 0 is late, so that the others have to sleep. */
static void run_loop(xep_group_t *group, int fd)
{
    static const mp_case_t cases[2] = {{.name = "normal", .mode = "normal", MP_SHAPE(8, 2, 32, 6)},
                                       {.name = "ll", .mode = "ll", MP_SHAPE(8, 2, 32, 6)}};
    mp_job_t job[2];
    xep_handle_t *handle[2];
    xep_request_t *req[2];
    int sleeps = 0;
    for (int i = 0; i < 2; i++) {
        mp_job_open(&job[i], &cases[i], 1);
        mp_job_buffer(&job[i], group);
    }
    for (int round = 0; round < ROUNDS; round++) {
        if (mp_rank() == 0) mp_sleep_us(LATE_US);
        for (int i = 0; i < 2; i++) {
            xep_dispatch_args_t d = mp_job_dispatch(&job[i]);
            MP_OK(xep_dispatch(job[i].buffer, &d, &handle[i], &req[i]));
        }
        sleeps += finish_by_events(fd, req);
        for (int i = 0; i < 2; i++) {
            xep_request_free(req[i]);
            mp_job_check_recv(&job[i], handle[i]);
            xep_handle_release(handle[i]);
        }
    }
    MP_CHECK(mp_rank() == 0 || sleeps > 0);
    for (int i = 0; i < 2; i++) mp_job_close(&job[i]);
}

int main(void)
{
    xep_group_t *group = mp_group();
    int fd = -1, again = -1;
    MP_SAYS(XEP_ERR_UNSUPPORTED, "the group has no descriptor to poll: XEP_PROGRESS is call (thread)",
            xep_group_event_fd(group, &fd));
    MP_SAYS(XEP_ERR_INVALID, "fd_p is NULL", xep_group_event_fd(group, NULL));
    xep_group_destroy(group);
    setenv("XEP_PROGRESS", "thread", 1);
    MP_OK(xep_group_create(NULL, &group));
    MP_OK(xep_group_event_fd(group, &fd));
    MP_OK(xep_group_event_fd(group, &again));
    MP_CHECK(fd >= 0 && fd == again);
    run_loop(group, fd);
    xep_group_destroy(group);
    MP_CHECK(fcntl(fd, F_GETFD) == -1);
    return 0;
}
