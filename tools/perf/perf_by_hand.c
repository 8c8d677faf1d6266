/* SPDX-License-Identifier: BSD-3-Clause */

#include "perf_by_hand.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "oracle_alloc.h"
#include "perf_say.h"

enum { SPINS = 2000, PATH_BYTES = 64, PAGE = 4096 };

/* ---- open and close ---- */

static xep_simd_t widest(void)
{
    static const char *const names[] =
        {[XEP_SIMD_AVX2] = "avx2", [XEP_SIMD_AVX512] = "avx512", [XEP_SIMD_AVX512VBMI] = "avx512vbmi"};
    xep_library_info_t info = XEP_LIBRARY_INFO_INIT;
    if (xep_library_query(&info) != XEP_OK) return XEP_SIMD_SCALAR;
    if (strcmp(info.simd, "neon") == 0) return XEP_SIMD_NEON;
    for (int simd = XEP_SIMD_AVX512VBMI; simd > XEP_SIMD_SCALAR; simd--)
        if (strcmp(info.simd, names[simd]) == 0) return (xep_simd_t)simd;
    return XEP_SIMD_SCALAR;
}

static void open_kernels(perf_by_hand_t *hand)
{
    const oracle_shape_t *shape = &hand->perf->shape;
    const xep_simd_t simd = widest();

    hand->copy_streaming = xep_copy_select(simd, 1);
    hand->copy_fetching = xep_copy_select_fetching(simd);
    for (int streaming = 0; streaming < 2; streaming++)
        hand->sum[streaming] = xep_weigh_select(shape->combine_dtype, simd, streaming);
    hand->terms = oracle_alloc(hand->perf->tokens * hand->width * sizeof *hand->terms);
    if (shape->quant == XEP_QUANT_NONE) return;
    hand->cast = xep_cast_select(shape->quant, shape->dtype, simd, shape->quant_scale);
    hand->row = oracle_alloc(hand->perf->placed_bytes);
    hand->row_scales = oracle_alloc(hand->perf->placed_scales);
}

/*
 * A row goes to a rank once, or by expert to each expert: destinations are one or the other, all else is the same. Made
 * once right away: a combine is timed without a dispatch, too, and with --cached nobody plans.
 */
void perf_by_hand_open(perf_by_hand_t *hand, perf_t *perf)
{
    const uint32_t experts = (uint32_t)perf->options.experts;
    const uint32_t ndest = perf->options.by_expert ? experts : perf->info.nranks;
    const size_t width = perf->options.topk < ndest ? perf->options.topk : ndest;

    hand->perf = perf;
    hand->ndest = ndest;
    hand->width = (uint32_t)width;
    hand->owner = oracle_alloc(experts * sizeof *hand->owner);
    hand->copies = oracle_alloc(perf->tokens * sizeof *hand->copies);
    hand->to = oracle_alloc(perf->tokens * width * sizeof *hand->to);
    hand->place = oracle_alloc(perf->tokens * width * sizeof *hand->place);
    hand->begin = oracle_alloc((ndest + 1) * sizeof *hand->begin);
    hand->seen = oracle_alloc(ndest * sizeof *hand->seen);
    for (uint32_t e = 0; e < experts; e++)
        hand->owner[e] = perf->options.by_expert ? e : oracle_owner(perf->routing, e);
    hand->memory = perf->area;
    hand->scales = perf->sent_rows * perf_line_up(perf->placed_bytes);
    hand->first = hand->begin;
    perf_by_hand_plan(hand);
    open_kernels(hand);
}

/* Shared memory has no name any more: it is gone when the last rank has unmapped it or ended. */
void perf_by_hand_close(perf_by_hand_t *hand)
{
    if (hand->told != NULL) munmap(hand->told, hand->shared);
    free(hand->owner);
    free(hand->copies);
    free(hand->to);
    free(hand->place);
    free(hand->begin);
    free(hand->seen);
    free(hand->row);
    free(hand->row_scales);
    free(hand->terms);
}

/* ---- memory that all ranks share ---- */

/*
 * A file in /dev/shm that has its name only until all have it mapped. Whatever kills the ranks then, nothing is left
 * behind.
 */

/** What rank 0 made, for the others to open. */
typedef struct offer {
    char path[PATH_BYTES]; /* empty: nothing */
    int reason;            /* errno */
} offer_t;

/* Memory is taken at once: a page that is not there when it is written would end the process. */
static int make_file(offer_t *offer, size_t bytes)
{
    int file = mkstemp(offer->path);
    if (file >= 0) offer->reason = posix_fallocate(file, 0, (off_t)bytes);
    else offer->reason = errno;
    if (file >= 0 && offer->reason != 0) unlink(offer->path);
    if (offer->reason != 0) offer->path[0] = '\0';
    return file;
}

/* The reason of the lowest rank that has one; 0: all have it mapped. */
static xep_status_t agree(const perf_t *perf, int own, int *reason_p)
{
    int *all = oracle_alloc(perf->info.nranks * sizeof *all);
    xep_status_t status = xep_group_allgather(perf->group, &own, all, sizeof own);

    *reason_p = 0;
    for (uint32_t rank = perf->info.nranks; status == XEP_OK && rank-- > 0;)
        if (all[rank] != 0) *reason_p = all[rank];
    free(all);
    return status;
}

/*
 * Rank 0 makes the file, all map it, and when all have said how that went its name is removed. A rank on which it has
 * failed says so too, and does not leave: the others wait for its word. A call that fails ends the run, but only when
 * the name is gone.
 */
int perf_by_hand_share(perf_by_hand_t *hand, size_t bytes)
{
    perf_t *perf = hand->perf;
    const size_t words = (perf->info.nranks * sizeof *hand->told + PAGE - 1) / PAGE * PAGE, all = words + bytes;
    offer_t own = {.path = "/dev/shm/xep_perf.XXXXXX"}, *offer = oracle_alloc(perf->info.nranks * sizeof own);
    int file = perf->info.rank == 0 ? make_file(&own, all) : -1, reason = 0;
    void *memory = MAP_FAILED;
    xep_status_t status = xep_group_allgather(perf->group, &own, offer, sizeof own);

    if (status == XEP_OK) {
        if (perf->info.rank != 0 && offer->path[0] != '\0') file = open(offer->path, O_RDWR | O_CLOEXEC);
        if (offer->path[0] != '\0' && file >= 0) memory = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        status = agree(perf, offer->reason != 0 ? offer->reason : memory == MAP_FAILED ? errno : 0, &reason);
    }
    if (perf->info.rank == 0 && own.path[0] != '\0') unlink(own.path);
    if (file >= 0) close(file);
    free(offer);
    perf_must(perf, status);
    if (memory != MAP_FAILED && reason != 0) munmap(memory, all);
    errno = reason;
    if (reason != 0) return -1;
    hand->told = memory;
    hand->shared = all;
    hand->memory = (char *)memory + words;
    return 0;
}

/* ---- words ---- */

void perf_by_hand_tell(const perf_by_hand_t *hand, perf_word_t word)
{
    atomic_store_explicit(&hand->told[hand->perf->info.rank].of[word].step, hand->step, memory_order_release);
}

/* The other rank may need this core. That it has died ends the run by the launcher. */
void perf_by_hand_await(const perf_by_hand_t *hand, uint32_t rank, perf_word_t word)
{
    const _Atomic uint64_t *told = &hand->told[rank].of[word].step;

    for (uint32_t spins = 0; atomic_load_explicit(told, memory_order_acquire) < hand->step; spins++)
        if (spins > SPINS) sched_yield();
}

static void meet(const perf_by_hand_t *hand, perf_word_t word)
{
    if (hand->told == NULL) return;
    perf_by_hand_tell(hand, word);
    for (uint32_t rank = 0; rank < hand->perf->info.nranks; rank++) perf_by_hand_await(hand, rank, word);
}

/* ---- a dispatch ---- */

/*
 * What hand-written code would do before it moves a row: place of each copy among those for its destination, then where
 * each destination begins. begin[d + 1] counts the rows for d until the last loop, which makes sums of the counts.
 * seen: token + 1, so that it need not be cleared for each token.
 */
void perf_by_hand_plan(perf_by_hand_t *hand)
{
    const perf_t *perf = hand->perf;
    const uint32_t ndest = hand->ndest, topk = (uint32_t)perf->options.topk;

    memset(hand->begin, 0, (ndest + 1) * sizeof *hand->begin);
    memset(hand->seen, 0, ndest * sizeof *hand->seen);
    for (uint64_t token = 0; token < perf->tokens; token++) {
        uint32_t n = 0;
        for (uint32_t k = 0; k < topk; k++) {
            const int64_t expert = perf->idx[token * topk + k];
            if (expert < 0 || hand->seen[hand->owner[expert]] == token + 1) continue;
            const uint32_t dest = hand->owner[expert];
            hand->seen[dest] = token + 1;
            hand->to[token * hand->width + n] = dest;
            hand->place[token * hand->width + n++] = hand->begin[dest + 1]++;
        }
        hand->copies[token] = n;
    }
    for (uint32_t dest = 0; dest < ndest; dest++) hand->begin[dest + 1] += hand->begin[dest];
}

/* A row as it is stored, and what lies beside it: the caller's scales, those of a cast, or for payloads any bytes. */
static const char *cast_row(const perf_by_hand_t *hand, uint64_t token, const char **scales_p)
{
    const perf_t *perf = hand->perf;
    const char *x = (const char *)perf->x + token * perf->row_bytes;

    *scales_p = perf->scales != NULL ? (const char *)perf->scales + token * perf->scale_bytes : x;
    if (hand->row == NULL) return x;
    hand->cast.row(&hand->cast, hand->row, hand->row_scales, x, perf->shape.hidden,
                   token + 1 < perf->tokens ? x + perf->row_bytes : x);
    *scales_p = hand->row_scales;
    return hand->row;
}

static char *memory_of(const perf_by_hand_t *hand, uint64_t token, uint32_t i)
{
    return hand->memory + hand->to[token * hand->width + i] * hand->each;
}

/*
 * Rows and scales as the receivers would have them. What the C library does well is left to it, as the modes do. Behind
 * a row lies that of the next token, unless it was cast. The fence counts: until then streaming stores are under way,
 * and the release of the word that tells of them does not order them.
 */
void perf_by_hand_store(const perf_by_hand_t *hand, int streaming)
{
    const perf_t *perf = hand->perf;
    const size_t bytes = perf->placed_bytes, stride = perf_line_up(bytes);

    for (uint64_t token = 0; token < perf->tokens; token++) {
        const char *scales, *x = cast_row(hand, token, &scales);
        const char *next = hand->row == NULL ? x + perf->row_bytes : x;
        for (uint32_t i = 0; i < hand->copies[token]; i++) {
            const uint64_t row = perf_by_hand_row(hand, token, i);
            char *memory = memory_of(hand, token, i), *to = memory + hand->x + row * stride;
            if (streaming) hand->copy_streaming(to, x, bytes, next);
            else memcpy(to, x, bytes);
            if (perf->placed_scales != 0)
                memcpy(memory + hand->scales + row * perf->placed_scales, scales, perf->placed_scales);
            if (hand->beside != NULL) hand->beside(perf, token, i);
        }
    }
    xep_stores_fence();
    meet(hand, PERF_ROWS);
}

/* ---- a combine ---- */

/* The outputs for a token; returns how many. Destinations are in the order of selections, sums may have their own. */
static uint32_t list_terms(const perf_by_hand_t *hand, uint64_t token, size_t stride, const void **terms)
{
    const uint32_t n = hand->copies[token], *to = &hand->to[token * hand->width];

    for (uint32_t i = 0; i < n; i++) {
        uint32_t before = hand->by_rank ? 0 : i;
        for (uint32_t j = 0; hand->by_rank && j < n; j++) before += to[j] < to[i];
        terms[before] = memory_of(hand, token, i) + hand->out + perf_by_hand_row(hand, token, i) * stride;
    }
    return n;
}

/* Rows by expert lie anywhere: those of the next tokens are said to the kernel, which fetches them ahead. */
void perf_by_hand_sum(const perf_by_hand_t *hand, char *sums, int streaming)
{
    const perf_t *perf = hand->perf;
    const size_t stride = perf_line_up(perf->sum_bytes);
    const void **terms = hand->terms;
    uint64_t left = 0;

    meet(hand, PERF_OUTPUTS);
    for (uint64_t token = 0; token < perf->tokens; token++) left += list_terms(hand, token, stride, terms + left);
    for (uint64_t token = 0; token < perf->tokens; token++) {
        const uint32_t n = hand->copies[token];
        left -= n;
        hand->sum[streaming](sums + token * perf->sum_bytes, terms, NULL, n, perf->options.by_expert ? left : 0,
                             perf->shape.hidden);
        terms += n;
    }
    xep_stores_fence();
}
