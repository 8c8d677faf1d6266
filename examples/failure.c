/* SPDX-License-Identifier: BSD-3-Clause */
/* A rank dies, and the others go on in a smaller group: "xep_run -k -n 4 ./failure" kills rank 1 of them. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <xep/elastic.h>
#include <xep/xep.h>

enum { T = 8, H = 64, E = 8, STEPS = 4 };
static float x[T][H], out[T][H];
static int64_t topk[T];

static void check(xep_status_t status)
{
    if (status == XEP_OK) return;
    fprintf(stderr, "%s: %s\n", xep_status_name(status), xep_last_error());
    exit(1);
}

static xep_buffer_t *make_buffer(xep_group_t *group)
{
    xep_buffer_params_t shape = XEP_BUFFER_PARAMS_INIT;
    xep_buffer_t *buffer;
    shape.experts = E, shape.topk = 1, shape.hidden = H, shape.tokens = T;
    shape.dtype = shape.combine_dtype = XEP_FP32;
    check(xep_buffer_create(group, &shape, &buffer));
    return buffer;
}

/* a layer whose experts return what they get */
static xep_status_t run_layer(xep_buffer_t *buffer)
{
    xep_dispatch_args_t send = XEP_DISPATCH_ARGS_INIT;
    xep_combine_args_t back = XEP_COMBINE_ARGS_INIT;
    xep_handle_t *handle;
    send.tokens = T, send.x = x, send.topk_idx = topk;
    xep_status_t status = xep_dispatch(buffer, &send, &handle, NULL);
    if (status != XEP_OK) return status;
    const xep_recv_t *recv;
    check(xep_handle_recv(handle, &recv));
    back.x = recv->x, back.x_stride = recv->x_stride, back.out = out;
    status = xep_combine(handle, &back, NULL);
    xep_handle_release(handle);
    return status;
}

/* the step that all go on with: a rank may have finished one in which others have failed */
static int least_step(xep_group_t *group, int step)
{
    xep_group_info_t info = XEP_GROUP_INFO_INIT;
    check(xep_group_query(group, &info));
    int *steps = malloc(info.nranks * sizeof *steps);
    if (steps == NULL) exit(1);
    check(xep_group_allgather(group, &step, steps, sizeof step));
    for (uint32_t rank = 0; rank < info.nranks; rank++)
        if (steps[rank] < step) step = steps[rank];
    free(steps);
    return step;
}

int main(void)
{
    xep_group_info_t info = XEP_GROUP_INFO_INIT;
    xep_group_t *group;
    check(xep_group_create(NULL, &group));
    check(xep_group_query(group, &info));
    xep_buffer_t *buffer = make_buffer(group);
    for (int t = 0; t < T; t++) topk[t] = t % E, x[t][0] = (float)t;

    for (int step = 0; step < STEPS; step++) {
        if (step == 2 && info.rank == 1 && info.nranks == 4) raise(SIGKILL);
        xep_status_t status = run_layer(buffer);
        /* shrink */
        if (status == XEP_ERR_PEER || status == XEP_ERR_TIMEOUT || status == XEP_ERR_ABORTED) {
            xep_group_t *next;
            check(xep_group_shrink(group, NULL, &next));
            xep_buffer_destroy(buffer); /* waits for nobody */
            xep_group_destroy(group);
            group = next; /* ranks 0 to R - 1 - dead */
            buffer = make_buffer(group);
            check(xep_group_query(group, &info));
            step = least_step(group, step) - 1; /* again */
            continue;
        }
        /* end */
        check(status);
    }
    printf("%u ranks are left; my token 3 came back as %g\n", info.nranks, (double)out[3][0]);
    xep_buffer_destroy(buffer);
    xep_group_destroy(group);
    return 0;
}
