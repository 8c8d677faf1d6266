/* SPDX-License-Identifier: BSD-3-Clause */

/** Unit test of src/util/error.c: names and texts of every status, the reason of a thread's last error. */
#include <pthread.h>
#include <string.h>

#include "error.h"
#include "unit.h"

#define VALUE(_name, _value, _text) {_name, _value, #_name, _text},

static const struct {
    xep_status_t status;
    int value;
    const char *name, *text;
} statuses[] = {XEP_STATUS_LIST(VALUE)};
enum { NSTATUSES = sizeof statuses / sizeof statuses[0] };

TEST(every_status_is_named)
{
    for (size_t i = 0; i < NSTATUSES; i++) {
        assert_int_equal((int)statuses[i].status, statuses[i].value);
        assert_string_equal(xep_status_name(statuses[i].status), statuses[i].name);
        assert_string_equal(xep_status_text(statuses[i].status), statuses[i].text);
    }
}

TEST(values_are_distinct)
{
    for (size_t i = 0; i < NSTATUSES; i++)
        for (size_t j = 0; j < i; j++) {
            assert_int_not_equal(statuses[i].value, statuses[j].value);
            assert_string_not_equal(statuses[i].text, statuses[j].text);
        }
}

TEST(other_values_have_a_name_too)
{
    assert_string_equal(xep_status_name((xep_status_t)-999), "XEP_ERR_UNKNOWN");
    assert_string_equal(xep_status_text((xep_status_t)12345), "unknown status");
}

TEST(fail_keeps_the_sentence)
{
    assert_int_equal(xep_fail(XEP_ERR_BUSY, "rank %d of %d", 3, 4), XEP_ERR_BUSY);
    assert_string_equal(xep_last_error(), "rank 3 of 4");
}

TEST(reason_may_quote_the_old_one)
{
    xep_fail(XEP_ERR_BOOT, "no server");
    xep_fail(XEP_ERR_BOOT, "group: %s", xep_last_error());
    assert_string_equal(xep_last_error(), "group: no server");
}

TEST(long_reason_is_cut)
{
    char text[2 * XEP_REASON_BYTES];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    xep_fail(XEP_ERR_INVALID, "%s", text);
    assert_int_equal(strlen(xep_last_error()), XEP_REASON_BYTES - 1);
}

static void *other_thread(void *arg)
{
    char *at_start = arg;
    strcpy(at_start, xep_last_error());
    xep_fail(XEP_ERR_PEER, "of another thread");
    return NULL;
}

TEST(reason_is_of_the_thread)
{
    char at_start[XEP_REASON_BYTES] = "not run";
    pthread_t thread;
    xep_fail(XEP_ERR_BUSY, "of this thread");
    assert_int_equal(pthread_create(&thread, NULL, other_thread, at_start), 0);
    pthread_join(thread, NULL);
    assert_string_equal(at_start, "");
    assert_string_equal(xep_last_error(), "of this thread");
}

TEST(told_status_is_one_of_ours)
{
    static const int64_t unknown[] = {XEP_OK, XEP_INPROGRESS, 7, -999, INT64_MAX, INT64_MIN, INT64_C(1) << 40};
    for (int64_t told = XEP_ERR_FUNCTION; told < XEP_OK; told++)
        assert_int_equal(xep_status_told(told, XEP_ERR_PEER), told);
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++)
        assert_int_equal(xep_status_told(unknown[i], XEP_ERR_PEER), XEP_ERR_PEER);
}
