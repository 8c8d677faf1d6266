/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Litmus tests of the orders in docs/results/memory-orders.md: what threads, or ranks that map each other's memory, do
 * with their words, in every order and with every value that C11 lets a load see (Relacy). Each fence and each order
 * that is not relaxed has a number; weakened, some execution must go wrong. Run by orders.sh; prints what failed.
 */
#include <cstdio>
#include <ostream>

#include <relacy/relacy.hpp>

static int weakened; /* the number of the order that is not there; 0: all are */

static rl::memory_order order(int number, rl::memory_order wanted)
{
    return number == weakened ? rl::mo_relaxed : wanted;
}

static void fence(int number, rl::memory_order wanted)
{
    if (number != weakened) rl::atomic_thread_fence(wanted, $);
}

static const rl::memory_order relaxed = rl::mo_relaxed, acquire = rl::mo_acquire, release = rl::mo_release,
                              seq_cst = rl::mo_seq_cst;

/* Rows, then the word that says so (xep_kit_signal); later it says that it has read them, and they are written anew. */
struct rows : rl::test_suite<rows, 2> {
    rl::var<int> row;
    rl::atomic<int> word, read;
    void before()
    {
        row($) = 0, word($) = 0, read($) = 0;
    }
    void thread(unsigned rank)
    {
        if (rank == 0) {
            row($) = 1;
            word.store(1, order(1, release), $);
            if (read.load(order(2, acquire), $)) row($) = 2;
        } else if (word.load(order(3, acquire), $)) {
            RL_ASSERT(row($) == 1);
            read.store(1, order(4, release), $);
        }
    }
};

/* A rank that is about to sleep, and one that has what it waits for (group_doorbell.c). */
struct sleeper : rl::test_suite<sleeper, 2> {
    rl::atomic<int> asleep, word;
    int slept, woke;
    void before()
    {
        asleep($) = 0, word($) = 0, slept = woke = 0;
    }
    void thread(unsigned rank)
    {
        if (rank == 0) {
            asleep.store(1, relaxed, $); /* an exchange, which orders nothing behind it */
            fence(5, seq_cst);
            slept = word.load(relaxed, $) == 0;
        } else {
            word.store(1, release, $);
            fence(6, seq_cst);
            woke = asleep.load(relaxed, $) == 1;
        }
    }
    void after()
    {
        RL_ASSERT(!slept || woke);
    }
};

/* A rank that is left out stores no more rows, or those that leave it out see that it does (normal_masks.c). */
struct storing : rl::test_suite<storing, 2> {
    rl::var<int> row;
    rl::atomic<int> stores, left_out;
    void before()
    {
        row($) = 0, stores($) = 0, left_out($) = 0;
    }
    void thread(unsigned rank)
    {
        if (rank == 0) {
            stores.store(1, relaxed, $);
            fence(7, seq_cst);
            if (!left_out.load(relaxed, $)) row($) = 1;
            stores.store(0, order(8, release), $);
        } else {
            left_out.store(1, relaxed, $);
            fence(9, seq_cst);
            if (!stores.load(order(10, acquire), $)) row($) = 2;
        }
    }
};

/* Of two ranks that leave each other out at most one goes on (agreement.c, xep_buffer_check_in). */
struct decide : rl::test_suite<decide, 2> {
    rl::atomic<int> left_out[2];
    int on[2];
    void before()
    {
        for (int i = 0; i < 2; i++) left_out[i]($) = 0, on[i] = 0;
    }
    void thread(unsigned rank)
    {
        left_out[1 - rank].store(1, relaxed, $);
        fence(11 + (int)rank, seq_cst);
        on[rank] = left_out[rank].load(relaxed, $) == 0;
    }
    void after()
    {
        RL_ASSERT(!(on[0] && on[1]));
    }
};

/* What a rank has read counts if it is not out by then: those that leave it out change it only after they said so. */
struct check_in : rl::test_suite<check_in, 2> {
    rl::atomic<int> row, left_out;
    void before()
    {
        row($) = 0, left_out($) = 0;
    }
    void thread(unsigned rank)
    {
        if (rank == 0) {
            int seen = row.load(relaxed, $);
            fence(13, acquire);
            if (left_out.load(relaxed, $) == 0) RL_ASSERT(seen == 0);
        } else {
            left_out.store(1, relaxed, $);
            fence(14, seq_cst);
            row.store(1, relaxed, $);
        }
    }
};

/* A reason, then a ring (group_doorbell.c); a ballot behind a fence, then its doorbell (members_mapped.c). */
struct ring : rl::test_suite<ring, 2> {
    rl::atomic<int> reason, rings;
    void before()
    {
        reason($) = 0, rings($) = 0;
    }
    void thread(unsigned rank)
    {
        if (rank == 0) {
            reason.store(1, relaxed, $);
            rings.fetch_add(1, order(15, release), $);
        } else if (rings.load(order(16, acquire), $)) {
            RL_ASSERT(reason.load(relaxed, $) == 1);
        }
    }
};

/* An account is one of two entries, by its number, which is read again behind it (group_account.c). */
struct account : rl::test_suite<account, 2> {
    rl::atomic<int> number, entries[2][2];
    void before()
    {
        number($) = 0;
        for (int i = 0; i < 4; i++) entries[i / 2][i % 2]($) = 0;
    }
    void thread(unsigned rank)
    {
        for (int n = 1; rank == 0 && n <= 3; n++) {
            fence(20, release);
            for (int i = 0; i < 2; i++) entries[n % 2][i].store(n, relaxed, $);
            number.store(n, order(17, release), $);
        }
        if (rank == 1) {
            int n = number.load(order(18, acquire), $), seen[2];
            for (int i = 0; i < 2; i++) seen[i] = entries[n % 2][i].load(relaxed, $);
            fence(19, acquire);
            if (number.load(relaxed, $) == n) RL_ASSERT(seen[0] == n && seen[1] == n);
        }
    }
};

template <typename test> static int holds()
{
    std::ostream nowhere(nullptr);
    rl::test_params params;
    params.search_type = rl::sched_full;
    params.output_stream = params.progress_stream = &nowhere;
    params.progress_output_period = 1u << 30;
    return rl::simulate<test>(params);
}

/** A test, and the numbers that are in it. */
static const struct {
    const char *name;
    int (*holds)();
    int first, last;
} tests[] = {{"rows", holds<rows>, 1, 4},           {"sleeper", holds<sleeper>, 5, 6},
             {"storing", holds<storing>, 7, 10},    {"decide", holds<decide>, 11, 12},
             {"check_in", holds<check_in>, 13, 14}, {"ring", holds<ring>, 15, 16},
             {"account", holds<account>, 17, 20}};

int main()
{
    int wrong = 0;
    for (const auto &test : tests) {
        weakened = 0;
        if (!test.holds()) wrong = std::printf("%s: goes wrong\n", test.name);
        for (weakened = test.first; weakened <= test.last; weakened++)
            if (test.holds()) wrong = std::printf("%s: holds without order %d\n", test.name, weakened);
    }
    return wrong != 0;
}
