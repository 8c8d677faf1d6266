/* SPDX-License-Identifier: BSD-3-Clause */

#include "fuzz_mode.h"

#include <string.h>

__attribute__((visibility("default"))) fuzz_answer_t fuzz_answer;

static xep_status_t answer_heap_size(const xep_shape_t *shape, xep_region_t *regions, uint64_t *recv_rows_p)
{
    (void)shape;
    memcpy(regions, fuzz_answer.regions, sizeof fuzz_answer.regions);
    *recv_rows_p = fuzz_answer.recv_rows;
    return fuzz_answer.status;
}

static xep_status_t answer_open(const xep_env_t *env, void **mode_p)
{
    (void)env, (void)mode_p;
    return XEP_ERR_UNSUPPORTED;
}

static void answer_close(void *mode)
{
    (void)mode;
}

static xep_status_t answer_run(void *mode, xep_op_t *op)
{
    (void)mode, (void)op;
    return XEP_ERR_UNSUPPORTED;
}

static xep_status_t answer_input(void *mode, uint32_t slot, void **base_p, size_t *stride_p)
{
    (void)mode, (void)slot, (void)base_p, (void)stride_p;
    return XEP_ERR_UNSUPPORTED;
}

static void answer_explain(void *mode, const xep_op_t *op, char *text, size_t bytes)
{
    (void)mode, (void)op, (void)text, (void)bytes;
}

/* Not const as that of a mode is: the target writes over it. */
__attribute__((visibility("default"))) xep_plugin_t xep_plugin = {XEP_PLUGIN_SIZES,
                                                                  .name = "fuzzed",
                                                                  .brief = "whatever the target says",
                                                                  .heap_size = answer_heap_size,
                                                                  .open = answer_open,
                                                                  .close = answer_close,
                                                                  .dispatch = answer_run,
                                                                  .combine = answer_run,
                                                                  .progress = answer_run,
                                                                  .input = answer_input,
                                                                  .explain = answer_explain};
