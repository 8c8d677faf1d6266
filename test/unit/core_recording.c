/* SPDX-License-Identifier: BSD-3-Clause */

/* Narrow indices that lie far apart: all else of recordings is in test/mp/perf/recorded.sh. */

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "recording.h"
#include "unit.h"

TEST(narrow_indices_far_apart)
{
    const int32_t idx[] = {3, -1, 99, 0, 7, 99, -1, -1, 99};
    char base[300], path[310], text[200];
    xep_recording_t *recording;
    xep_config_t config;
    xep_dispatch_args_t args = XEP_DISPATCH_ARGS_INIT;
    args.topk_idx = idx, args.topk_idx_dtype = XEP_INT32, args.topk_idx_stride = 3 * sizeof *idx;
    args.tokens = 3, args.topk = 2;
    assert_int_equal(xep_config_read(&config), XEP_OK);
    snprintf(base, sizeof base, "%s/routes", unit_make_root());
    snprintf(path, sizeof path, "%s.2", base);
    config.record = base, config.record_at = 1;
    assert_int_equal(xep_recording_open(&config, 2, 4, &recording), XEP_OK);
    xep_recording_count(recording, &args, 8);
    xep_recording_close(recording);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    assert_string_equal(text, "# dispatch 1 of rank 2 of 4: 3 tokens, top 2 of 8 experts\n"
                              "2 0 3 -1\n2 1 0 7\n2 2 -1 -1\n");
    unlink(path);
}
