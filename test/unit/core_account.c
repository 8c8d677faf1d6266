/* SPDX-License-Identifier: BSD-3-Clause */

/* The sentence that the accounts of all ranks come to. */

#include <string.h>

#include "account.h"
#include "unit.h"

enum { RANKS = 8 };

static xep_account_of_t of[RANKS];

static void all_wait(uint32_t kind, uint64_t number, const char *what, uint32_t opens)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        of[r] = (xep_account_of_t){.said = {.kind = kind, .number = number, .opens = opens}};
        if (kind == XEP_WAITS_DISPATCH) strcpy(of[r].said.mode, "ll");
        strcpy(of[r].said.what, what);
    }
}

static void all_wait_for(uint32_t late)
{
    for (uint32_t r = 0; r < RANKS; r++)
        if (r != late) xep_account_add_late(&of[r].said, late);
}

static void says_nothing(uint32_t rank)
{
    of[rank].said = (xep_account_t){.kind = XEP_WAITS_NOWHERE};
}

static void expect(uint32_t rank, const char *sentence)
{
    char text[512];
    xep_accounts_t accounts = {.nranks = RANKS, .rank = rank, .of = of};
    xep_accounts_tell(&accounts, text, sizeof text);
    assert_string_equal(text, sentence);
}

TEST(one_that_never_came)
{
    all_wait(XEP_WAITS_DISPATCH, 17, "counts", 1);
    all_wait_for(5);
    says_nothing(5);
    expect(0, "rank 5 never began dispatch 17 of mode ll and does not answer; "
              "ranks 0-4, 6, 7 wait for its counts");
    of[5].said = (xep_account_t){.kind = XEP_WAITS_BARRIER, .number = 3};
    expect(2, "rank 5 never began dispatch 17 of mode ll and waits in barrier 3; "
              "ranks 0-4, 6, 7 wait for its counts");
    of[5].said = (xep_account_t){.kind = XEP_WAITS_ALLGATHER, .number = 7, .mode = "xep_weights_create"};
    expect(2, "rank 5 never began dispatch 17 of mode ll and waits in allgather 7 of xep_weights_create; "
              "ranks 0-4, 6, 7 wait for its counts");
    of[5].died = 1;
    expect(7, "rank 5 has died; ranks 0-4, 6, 7 wait for its counts");
}

/* By nodes: its word may be with a rank that passes it on. Who would have had it from the rank itself knows more. */
TEST(one_that_is_heard_through_others)
{
    all_wait(XEP_WAITS_DISPATCH, 17, "counts", 2);
    all_wait_for(5);
    says_nothing(5);
    expect(0, "rank 5 was not heard in dispatch 17 of mode ll and does not answer; "
              "ranks 0-4, 6, 7 wait for its counts");
    of[4].said.opens = 1;
    expect(0, "rank 5 never began dispatch 17 of mode ll and does not answer; "
              "ranks 0-4, 6, 7 wait for its counts");
    of[4].said.opens = 99;
    for (uint32_t r = 0; r < RANKS; r++)
        if (r != 5) xep_account_add_late(&of[r].said, 6);
    says_nothing(6);
    expect(0, "ranks 5, 6 were not heard in dispatch 17 of mode ll and do not answer; "
              "ranks 0-4, 7 wait for their counts");
}

/* Others that wait for it are late themselves, and not to blame. */
TEST(one_that_stopped_in_the_middle)
{
    all_wait(XEP_WAITS_DISPATCH, 9, "rows", 0);
    all_wait_for(7);
    says_nothing(7);
    for (uint32_t r = 0; r < 6; r++) xep_account_add_late(&of[r].said, 6);
    strcpy(of[6].said.what, "counts");
    of[6].said.opens = 1;
    expect(0, "rank 7 began dispatch 9 of mode ll and does not answer; ranks 0-5 wait for its rows; "
              "rank 6 waits for its counts");
}

TEST(several)
{
    all_wait(XEP_WAITS_BARRIER, 4, "", 1);
    for (uint32_t late = 3; late < 6; late++) all_wait_for(late);
    says_nothing(3), says_nothing(4), says_nothing(5);
    of[4].died = 1;
    expect(1, "rank 4 has died; ranks 3, 5 never came to barrier 4 and do not answer; ranks 0-2, 6, 7 wait for them");
}

TEST(nobody_to_blame)
{
    all_wait(XEP_WAITS_COMBINE, 2, "rows", 0);
    for (uint32_t r = 0; r < RANKS; r++) xep_account_add_late(&of[r].said, (r + 1) % RANKS);
    expect(0, "ranks 0-7 wait for rows of one another in combine 2");
}

TEST(not_heard_of)
{
    all_wait(XEP_WAITS_DISPATCH, 17, "counts", 1);
    all_wait_for(0);
    says_nothing(0), says_nothing(3);
    expect(1, "rank 0 never began dispatch 17 of mode ll and does not answer; "
              "ranks 1, 2, 4-7 wait for its counts; nothing is known of rank 3");
}

/* Another operation of the same number, on another buffer, is another call. */
TEST(other_buffers)
{
    all_wait(XEP_WAITS_DISPATCH, 17, "counts", 1);
    all_wait_for(1);
    of[1].said.buffer = 2;
    expect(0, "rank 1 never began dispatch 17 of mode ll and waits in dispatch 17 of mode ll of another buffer; "
              "ranks 0, 2-7 wait for its counts");
}

TEST(what_peers_write)
{
    xep_account_t account = {.kind = XEP_WAITS_BARRIER, .late = 1, .ranks = {RANKS - 1}};
    assert_true(xep_account_check(&account, RANKS));
    account.ranks[0] = RANKS;
    assert_false(xep_account_check(&account, RANKS));
    account.ranks[0] = 0, account.late = UINT32_MAX;
    assert_false(xep_account_check(&account, RANKS));
    account.late = 1, account.kind = XEP_WAITS_KINDS;
    assert_false(xep_account_check(&account, RANKS));
    account.kind = XEP_WAITS_NOWHERE;
    assert_false(xep_account_check(&account, RANKS));
    account.kind = XEP_WAITS_END;
    memset(account.what, '\033', sizeof account.what);
    memcpy(account.mode, "a\n%s", 5);
    assert_true(xep_account_check(&account, RANKS));
    assert_int_equal(strlen(account.what), XEP_ACCOUNT_NAME - 1);
    assert_int_equal(strspn(account.what, "?"), XEP_ACCOUNT_NAME - 1);
    assert_string_equal(account.mode, "a??s");
}

/* Whatever does not fit is left out; nothing is written behind. */
TEST(short_of_room)
{
    all_wait(XEP_WAITS_DISPATCH, 17, "counts", 1);
    all_wait_for(5);
    says_nothing(5);
    for (size_t bytes = 0; bytes < 100; bytes++) {
        char text[128];
        xep_accounts_t accounts = {.nranks = RANKS, .of = of};
        memset(text, '#', sizeof text);
        xep_accounts_tell(&accounts, text, bytes);
        if (bytes > 0) assert_true(strlen(text) < bytes);
        assert_int_equal(text[bytes], '#');
    }
}
