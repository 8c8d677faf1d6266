/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 1, limit: 60 */

/*
 * Where UCX opens RDMA devices and may lock too little memory, it would not come back from making a worker: that is
 * told before. libxep calls this program's ucp_context_print_info(), which knows of such a device.
 */
#include <linux/capability.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "mp_rig.h"

struct ucp_context;
__attribute__((visibility("default"))) void ucp_context_print_info(const struct ucp_context *context, FILE *stream);

static int has_device;

void ucp_context_print_info(const struct ucp_context *context, FILE *stream)
{
    (void)context;
    fputs("#\n# UCP context\n#\n#     resource 2  :  md 2  dev 2  flags -- tcp/eth0\n", stream);
    if (has_device) fputs("#     resource 3  :  md 3  dev 3  flags -- ud_verbs/mlx5_0:1\n#\n", stream);
}

/* Root may lock as much as it likes, by a right of which this takes the effect. */
static void give_up_right(void)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];
    MP_CHECK(syscall(SYS_capget, &head, data) == 0);
    data[0].effective &= ~(1u << CAP_IPC_LOCK);
    MP_CHECK(syscall(SYS_capset, &head, data) == 0);
}

/* A higher hard limit takes a right. */
static int limit(rlim_t soft, rlim_t hard)
{
    const struct rlimit both = {soft, hard};
    return setrlimit(RLIMIT_MEMLOCK, &both) == 0;
}

int main(void)
{
    enum { SOFT = 64 << 10, HARD = 8 << 20, ENOUGH = 64 << 20 };
    struct rlimit now;
    xep_group_t *group = NULL;
    MP_CHECK(getrlimit(RLIMIT_MEMLOCK, &now) == 0);
    give_up_right();

    has_device = 1;
    if (limit(SOFT, ENOUGH)) {
        xep_group_destroy(mp_group());
        MP_CHECK(getrlimit(RLIMIT_MEMLOCK, &now) == 0);
        MP_CHECK(now.rlim_cur == ENOUGH);
    }
    if (!limit(SOFT, HARD)) return mp_skip("the limit of locked memory is below 8 MiB");
    MP_SAYS(XEP_ERR_TRANSPORT,
            "too little memory may be locked for ud_verbs/mlx5_0:1: 8192 KiB (65536 at least, and the buffers; "
            "ulimit -Hl, best unlimited, or no RDMA: UCX_TLS=^ib)",
            xep_group_create(NULL, &group));

    has_device = 0;
    return mp_end(mp_group());
}
