/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A rank is to blame if others wait for it and it does not wait in the same call itself. A rank that is waited for, but
 * waits for such a one, is late for that reason alone.
 */
#include "account.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <xep/plugin.h>

void xep_account_add_late(xep_account_t *account, uint32_t rank)
{
    if (account->late < XEP_ACCOUNT_RANKS) account->ranks[account->late] = rank;
    account->late++;
}

/* The name goes into a log: keeps control messages, digits and some punctuation only. */
static void clean(char *name)
{
    name[XEP_ACCOUNT_NAME - 1] = '\0';
    for (char *c = name; *c != '\0'; c++)
        if (!isalnum((unsigned char)*c) && strchr(" _-.'", *c) == NULL) *c = '?';
}

static uint32_t listed(const xep_account_t *account)
{
    return account->late < XEP_ACCOUNT_RANKS ? account->late : XEP_ACCOUNT_RANKS;
}

int xep_account_check(xep_account_t *account, uint32_t nranks)
{
    if (account->kind == XEP_WAITS_NOWHERE || account->kind >= XEP_WAITS_KINDS || account->late > nranks) return 0;
    for (uint32_t i = 0; i < listed(account); i++)
        if (account->ranks[i] >= nranks) return 0;
    clean(account->what);
    clean(account->mode);
    return 1;
}

int xep_account_is_same(const xep_account_t *a, const xep_account_t *b)
{
    return a->kind == b->kind && a->number == b->number && a->buffer == b->buffer;
}

/* ---- the sentence ---- */

typedef struct writer {
    char *text;
    size_t bytes, used;
} writer_t;

__attribute__((format(printf, 2, 3))) static void add(writer_t *to, const char *format, ...)
{
    va_list args;
    if (to->used >= to->bytes) return;
    va_start(args, format);
    int n = vsnprintf(to->text + to->used, to->bytes - to->used, format, args);
    va_end(args);
    if (n > 0) to->used += (size_t)n;
}

/* What the ranks that wait know of the late ones: whether these have begun the call. */
typedef enum {
    NOT_SEEN, /* what they wait for comes through other ranks, which may hold it back */
    NEVER,    /* it is the first thing that a rank sends in the call */
    BEGUN     /* it comes later */
} begun_t;

typedef struct teller {
    const xep_accounts_t *accounts;
    const xep_account_t *own;
    uint32_t nblamed;
    begun_t begun;
} teller_t;

typedef enum { WAITING, DEAD, SILENT, ELSEWHERE, UNHEARD } role_t;

/* The role of a rank that others wait for. */
static role_t blame(const xep_accounts_t *accounts, uint32_t rank)
{
    if (accounts->of[rank].died) return DEAD;
    return accounts->of[rank].said.kind == XEP_WAITS_NOWHERE ? SILENT : ELSEWHERE;
}

static begun_t begun_for(const xep_account_t *account)
{
    if (account->opens == XEP_OPENS_NOT) return BEGUN;
    return account->opens == XEP_OPENS_DIRECTLY ? NEVER : NOT_SEEN;
}

/*
 * First the ranks that wait in this call, then those they wait for. Two passes: a rank that a lower one waits for may
 * wait here itself, and is then not to blame. All others are not mentioned.
 */
static void assign_roles(teller_t *teller)
{
    const xep_accounts_t *accounts = teller->accounts;
    for (uint32_t r = 0; r < accounts->nranks; r++) {
        xep_account_of_t *of = &accounts->of[r];
        int waits = !of->died && xep_account_is_same(&of->said, teller->own);
        of->role = waits ? WAITING : UNHEARD;
        if (waits && begun_for(&of->said) > teller->begun) teller->begun = begun_for(&of->said);
    }
    for (uint32_t r = 0; r < accounts->nranks; r++) {
        const xep_account_t *account = &accounts->of[r].said;
        for (uint32_t i = 0; accounts->of[r].role == WAITING && i < listed(account); i++) {
            uint32_t late = account->ranks[i];
            if (accounts->of[late].role != UNHEARD) continue;
            accounts->of[late].role = (uint8_t)blame(accounts, late);
            teller->nblamed++;
        }
    }
}

static role_t role_of(const teller_t *teller, uint32_t rank)
{
    return (role_t)teller->accounts->of[rank].role;
}

typedef int (*is_of_fn)(const teller_t *teller, uint32_t rank, const void *arg);

/* "rank 5" or "ranks 0-4, 6, 7", of those that is_of picks; how many. */
static uint32_t add_ranks(writer_t *to, const teller_t *teller, is_of_fn is_of, const void *arg)
{
    uint32_t nranks = teller->accounts->nranks, count = 0;
    const char *before = " ";
    for (uint32_t r = 0; r < nranks; r++) count += (uint32_t)(is_of(teller, r, arg) != 0);
    add(to, count == 1 ? "rank" : "ranks");
    for (uint32_t r = 0; r < nranks; r++) {
        uint32_t last = r;
        if (!is_of(teller, r, arg)) continue;
        while (last + 1 < nranks && is_of(teller, last + 1, arg)) last++;
        if (last > r + 1) add(to, "%s%u-%u", before, r, last);
        else add(to, last == r ? "%s%u" : "%s%u, %u", before, r, last);
        before = ", ";
        r = last;
    }
    return count;
}

static const char *const names[XEP_WAITS_KINDS] = {"",          "dispatch",     "combine",    "barrier",
                                                   "allgather", "buffer's end", "next piece", "reset"};

static void add_call(writer_t *to, const xep_account_t *account)
{
    add(to, "%s %llu", names[account->kind], (unsigned long long)account->number);
    if (account->mode[0] != '\0')
        add(to, " of %s%s", account->kind == XEP_WAITS_ALLGATHER ? "" : "mode ", account->mode);
}

/* The verb for count ranks, whose names are written already. */
static void add_began(writer_t *to, const teller_t *teller, uint32_t count)
{
    const uint32_t kind = teller->own->kind;
    int operation = kind == XEP_WAITS_DISPATCH || kind == XEP_WAITS_COMBINE || kind == XEP_WAITS_NEXT;
    if (!operation) add(to, " never came to ");
    else if (teller->begun == NOT_SEEN) add(to, count == 1 ? " was not heard in " : " were not heard in ");
    else add(to, teller->begun == BEGUN ? " began " : " never began ");
    add_call(to, teller->own);
}

static int has_role(const teller_t *teller, uint32_t rank, const void *arg)
{
    return role_of(teller, rank) == *(const role_t *)arg;
}

static uint32_t count_role(const teller_t *teller, role_t role)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < teller->accounts->nranks; r++) count += role_of(teller, r) == role;
    return count;
}

static const char *separate(const writer_t *to)
{
    return to->used == 0 ? "" : "; ";
}

static void add_silent(writer_t *to, const teller_t *teller)
{
    role_t dead = DEAD, silent = SILENT;
    if (count_role(teller, dead) != 0) {
        uint32_t count = add_ranks(to, teller, has_role, &dead);
        add(to, count == 1 ? " has died" : " have died");
    }
    if (count_role(teller, silent) == 0) return;
    add(to, "%s", separate(to));
    uint32_t count = add_ranks(to, teller, has_role, &silent);
    add_began(to, teller, count);
    add(to, count == 1 ? " and does not answer" : " and do not answer");
}

static void add_elsewhere(writer_t *to, const teller_t *teller)
{
    for (uint32_t r = 0; r < teller->accounts->nranks; r++) {
        const xep_account_t *other = &teller->accounts->of[r].said;
        if (role_of(teller, r) != ELSEWHERE) continue;
        add(to, "%srank %u", separate(to), r);
        add_began(to, teller, 1);
        add(to, " and waits in ");
        add_call(to, other);
        if (other->buffer != 0 && other->buffer != teller->own->buffer) add(to, " of another buffer");
    }
}

/* Waits for the same as the rank that arg points to. */
static int waits_as(const teller_t *teller, uint32_t rank, const void *arg)
{
    const xep_account_of_t *of = teller->accounts->of, *like = &of[*(const uint32_t *)arg];
    return role_of(teller, rank) == WAITING && strcmp(of[rank].said.what, like->said.what) == 0;
}

/* Names each thing that is waited for once, with all ranks that wait for it. */
static void add_waiting(writer_t *to, const teller_t *teller)
{
    for (uint32_t r = 0; r < teller->accounts->nranks; r++) {
        uint32_t first = 0;
        const char *what = teller->accounts->of[r].said.what;
        if (role_of(teller, r) != WAITING) continue;
        /* r itself at the latest */
        while (!waits_as(teller, first, &r)) first++;
        if (first != r) continue;
        add(to, "%s", separate(to));
        uint32_t count = add_ranks(to, teller, waits_as, &r);
        add(to, count == 1 ? " waits for " : " wait for ");
        if (teller->nblamed == 0) add(to, "%s of one another in ", what[0] == '\0' ? "words" : what);
        else if (what[0] == '\0') add(to, teller->nblamed == 1 ? "it" : "them");
        else add(to, teller->nblamed == 1 ? "its %s" : "their %s", what);
        if (teller->nblamed == 0) add_call(to, teller->own);
    }
}

void xep_accounts_tell(const xep_accounts_t *accounts, char *text, size_t bytes)
{
    teller_t teller = {.accounts = accounts, .own = &accounts->of[accounts->rank].said};
    writer_t to = {.text = text, .bytes = bytes};
    role_t unheard = UNHEARD;
    if (bytes != 0) text[0] = '\0';
    assign_roles(&teller);
    add_silent(&to, &teller);
    add_elsewhere(&to, &teller);
    add_waiting(&to, &teller);
    if (count_role(&teller, unheard) == 0) return;
    add(&to, "; nothing is known of ");
    add_ranks(&to, &teller, has_role, &unheard);
}
