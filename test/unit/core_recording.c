/* SPDX-License-Identifier: BSD-3-Clause */

/* What is written of a dispatch, whatever its indices look like; which dispatch; and what is no error. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log.h"
#include "recording.h"
#include "unit.h"

static char folder[256], base[300];

static void make_folder(void)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%.200s/recording.XXXXXX", tmp == NULL ? "/tmp" : tmp);
    assert_non_null(mkdtemp(folder));
    snprintf(base, sizeof base, "%s/routes", folder);
}

static xep_recording_t *open_recording(uint32_t at, uint32_t rank)
{
    xep_recording_t *recording;
    xep_config_t config;
    assert_int_equal(xep_config_read(&config), XEP_OK);
    config.record = base;
    config.record_at = at;
    assert_int_equal(xep_recording_open(&config, rank, 4, &recording), XEP_OK);
    assert_non_null(recording);
    return recording;
}

/* what rank's file has; "" if there is none */
static const char *written(uint32_t rank)
{
    static char text[1000];
    char path[400];
    snprintf(path, sizeof path, "%s.%u", base, rank);
    FILE *file = fopen(path, "r");
    size_t bytes = file == NULL ? 0 : fread(text, 1, sizeof text - 1, file);
    text[bytes] = '\0';
    if (file != NULL) fclose(file);
    return text;
}

static xep_dispatch_args_t args_of(const void *idx, xep_dtype_t dtype, size_t stride, uint64_t tokens, uint32_t topk)
{
    xep_dispatch_args_t args = XEP_DISPATCH_ARGS_INIT;
    args.topk_idx = idx;
    args.topk_idx_dtype = dtype;
    args.topk_idx_stride = stride;
    args.tokens = tokens;
    args.topk = topk;
    return args;
}

static void keep_message(void *arg, xep_log_level_t level, const char *message)
{
    if (level == XEP_LOG_WARN) snprintf(arg, 500, "%.499s", message);
}

TEST(narrow_indices_far_apart)
{
    const int32_t idx[] = {3, -1, 99, 0, 7, 99, -1, -1, 99};
    xep_dispatch_args_t args = args_of(idx, XEP_INT32, 3 * sizeof *idx, 3, 2);
    make_folder();
    xep_recording_t *recording = open_recording(1, 2);
    xep_recording_count(recording, &args, 8);
    xep_recording_close(recording);
    assert_string_equal(written(2), "# dispatch 1 of rank 2 of 4: 3 tokens, top 2 of 8 experts\n"
                                    "2 0 3 -1\n2 1 0 7\n2 2 -1 -1\n");
}

/* the first and the third leave nothing; the rank may have no tokens in the second */
TEST(one_of_several)
{
    const int64_t idx[] = {1, 5};
    xep_dispatch_args_t args = args_of(idx, XEP_INT64, sizeof *idx, 2, 1), none = args_of(NULL, XEP_INT64, 8, 0, 1);
    make_folder();
    xep_recording_t *full = open_recording(2, 0), *empty = open_recording(2, 1);
    xep_recording_count(full, &none, 6);
    xep_recording_count(empty, &args, 6);
    assert_string_equal(written(0), "");
    assert_string_equal(written(1), "");
    xep_recording_count(full, &args, 6);
    xep_recording_count(empty, &none, 6);
    xep_recording_count(full, &none, 6);
    xep_recording_count(empty, &args, 6);
    assert_string_equal(written(0), "# dispatch 2 of rank 0 of 4: 2 tokens, top 1 of 6 experts\n0 0 1\n0 1 5\n");
    assert_string_equal(written(1), "# dispatch 2 of rank 1 of 4: 0 tokens, top 1 of 6 experts\n");
    xep_recording_close(full);
    xep_recording_close(empty);
}

TEST(nothing_is_followed)
{
    const int64_t idx[] = {1};
    xep_dispatch_args_t args = args_of(idx, XEP_INT64, sizeof *idx, 1, 1);
    char link[400], target[400];
    struct stat info;
    make_folder();
    snprintf(link, sizeof link, "%s.3", base);
    snprintf(target, sizeof target, "%s/precious", folder);
    assert_int_equal(symlink(target, link), 0);
    xep_recording_t *recording = open_recording(1, 3);
    xep_recording_count(recording, &args, 6);
    xep_recording_close(recording);
    assert_int_equal(lstat(target, &info), -1);
    assert_non_null(strstr(written(3), "\n3 0 1\n"));
}

TEST(what_is_not_written_is_said)
{
    const int64_t idx[] = {1};
    xep_dispatch_args_t args = args_of(idx, XEP_INT64, sizeof *idx, 1, 1);
    char said[500] = "";
    make_folder();
    snprintf(base, sizeof base, "%s/no/such", folder);
    xep_log_set(keep_message, said);
    xep_recording_t *recording = open_recording(1, 0);
    xep_recording_count(recording, &args, 6);
    assert_non_null(strstr(said, "the routing is not written: "));
    assert_non_null(strstr(said, "/no/such.0: No such file or directory"));
    said[0] = '\0';
    xep_recording_close(recording);
    assert_string_equal(said, "");
    recording = open_recording(7, 0);
    xep_recording_count(recording, &args, 6);
    xep_recording_close(recording);
    xep_log_set(NULL, NULL);
    assert_non_null(strstr(said, "no routing is written: dispatch 7 was asked for, and there were 1"));
}

TEST(asked_for_or_not)
{
    xep_recording_t *recording;
    xep_config_t config;
    assert_int_equal(xep_config_read(&config), XEP_OK);
    config.record = "";
    assert_int_equal(xep_recording_open(&config, 0, 1, &recording), XEP_OK);
    assert_null(recording);
    xep_recording_close(recording);
}
