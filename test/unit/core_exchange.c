/* SPDX-License-Identifier: BSD-3-Clause */

/* What a bootstrap brings is not believed: lengths that cannot be are refused before memory is taken for them. */

#include <string.h>

#include "error.h"
#include "group_exchange.h"
#include "unit.h"

enum { RANKS = 2 };

static uint64_t lies; /* length that rank 1 says it sends; 0: what rank 0 says */

static xep_status_t gather(xep_boot_t *boot, const void *send, void *recv, size_t bytes)
{
    (void)boot;
    for (int r = 0; r < RANKS; r++) memcpy((char *)recv + (size_t)r * bytes, send, bytes);
    if (bytes == sizeof lies && lies != 0) memcpy((char *)recv + bytes, &lies, bytes);
    return XEP_OK;
}

static xep_status_t exchange(const char *text, size_t bytes, xep_blobs_t *blobs)
{
    xep_boot_t boot = {.allgather = gather, .nranks = RANKS};
    xep_group_t group = {.boot = &boot, .nranks = RANKS};
    return xep_group_exchange_blobs(&group, text, bytes, blobs);
}

TEST(blobs_arrive)
{
    xep_blobs_t blobs;
    lies = 0;
    assert_int_equal(exchange("abc", 3, &blobs), XEP_OK);
    assert_int_equal(blobs.bytes[1], 3);
    assert_memory_equal(blobs.blob[1], "abc", 3);
    xep_blobs_free(&blobs);
}

TEST(wild_lengths_are_refused)
{
    static const uint64_t wild[] = {UINT64_MAX, UINT64_MAX / 2, 1ull << 40, 1 << 17};
    xep_blobs_t blobs;
    for (size_t i = 0; i < sizeof wild / sizeof wild[0]; i++) {
        lies = wild[i];
        assert_int_equal(exchange("abc", 3, &blobs), XEP_ERR_PROTOCOL);
        assert_non_null(strstr(xep_last_error(), "invalid length from rank 1"));
    }
}

/* What a rank says of itself: an error is its own, and anything else no status at all. */
TEST(agreement_believes_known_errors)
{
    static const int32_t said[] = {XEP_OK, XEP_ERR_FUNCTION, 7, -999},
                         heard[] = {XEP_OK, XEP_ERR_FUNCTION, XEP_ERR_PROTOCOL, XEP_ERR_PROTOCOL};
    for (size_t i = 0; i < sizeof said / sizeof said[0]; i++) {
        xep_boot_t boot = {.allgather = gather, .nranks = RANKS};
        xep_group_t group = {.boot = &boot, .nranks = RANKS};
        const int64_t mine = 0;
        int64_t all[RANKS];
        lies = (uint32_t)said[i];
        assert_int_equal(xep_group_agree(&group, "do it", &mine, all, sizeof mine), heard[i]);
        if (heard[i] != XEP_OK) assert_non_null(strstr(xep_last_error(), "rank 1 cannot do it: "));
    }
}
