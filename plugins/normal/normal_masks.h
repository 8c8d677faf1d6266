/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Operations without ranks that are out (XEP_ON_FAILURE_MASK). normal.h has the steps that this speaks of.
 *
 * Without ranks that are out, where all are mapped (src/elastic/agreement.h says who is). A rank that
 * suspects another one says of each dispatch whether it has that rank's record and its done, and ends nothing until all
 * agree.
 *  - with it, if some survivor has its done: all its rows were stored before, everywhere. A rank that lacks the line,
 *    which is the same in every heap, takes it from there.
 *  - else without it. If some survivor has its record, that counts all the same (XEP_OUT_HEARD), as that survivor may
 *    have stored rows behind those that were announced: all others take the record from there, find the same places,
 *    and leave the same gap. At step 6 each receiver closes its gaps: rows move down in its own slot, and the matrix of
 *    rows is from then on that of the others alone. So all know where rows are, for their combines, without another
 *    word, and users never see a gap.
 *  - if no survivor has its record (XEP_OUT_SILENT), none has found places yet: it has no rows.
 * So at all survivors the same records count, and places are the same. A rank that is dead may have had the record of
 * another one that is dead and that no survivor has: its rows lie elsewhere, and no survivor has stored any by then.
 * Its digest says so, and the dispatch is without it, too. A cached dispatch counts the rows of its handle, of the
 * ranks whose records count.
 *
 * A mapped rank that is only slow may be stopped between two rows. "storing" in its heap says of which dispatch; it
 * looks whether it was told that it is out after it has written that and before its first row, and the others look at
 * that after they have told it: it stores no row, or they see that it may, and find no places and close no gaps in this
 * dispatch before it has done with it, or is dead. All else that it writes are lines of its own.
 *
 * Without ranks that are out, where some are not mapped (src/elastic/members_wire.c). A record that one rank has,
 * nobody can give to another; so ranks may count different records, and would find different places. Hence grants:
 * where only those know places at once whose dispatch is with all ranks that were in when it began; all others ask each
 * receiver (normal_grants.c). So as long as nobody is left out there is no message more.
 *  - a rank has concluded when it has taken the records. What it has granted stays granted.
 *  - with a rank that is gone, if some survivor has concluded: all come to that verdict. Whoever has its done has its
 *    rows, and done says where. Whoever has none closes the gap in its own slot. A survivor that has not concluded
 *    takes the records without that one, and asks.
 *  - else without it: all survivors that were in it ask.
 *
 * Why all that know places know the same: let r and s have concluded with all that were in when each began, and z be in
 * for s and out for r. r has decided that with the ballot of s; s goes on with nothing from its ballot to its decision.
 * So s, which has the record of r, sent behind that, has concluded behind its own decision, and was not with z; or it
 * began behind it, and z was out for s, too. The same holds for what the dead have sent, and so nobody's rows lie on
 * those of another one, however late they come. And z, if it is out before r begins, never has the record of r, and so
 * sends no rows.
 * So survivors may count the rows of a rank that is gone differently, in that dispatch: their digests may differ in
 * counts, not in the verdict. In combine a reader that maps the owner finds its rows where the offer says; for all
 * others "returned" depends on the reader's own rows alone. Cached dispatches count no rows of a rank that is out.
 * What a rank that is out and comes back sends to unmapped ranks nobody stores from the decision on; gaps are closed
 * behind that; for mapped ones "storing" is looked at as above.
 */
#ifndef XEP_NORMAL_MASKS_H
#define XEP_NORMAL_MASKS_H

#include "normal_shared.h"

extern const xep_mask_ops_t normal_masks;

/** What goes with done to a rank that is not mapped, with grants: a part of its line. */
typedef struct normal_ending {
    normal_digest_t digest;
    uint64_t begin;
} normal_ending_t;
_Static_assert(offsetof(normal_line_t, begin) - offsetof(normal_line_t, digest) == offsetof(normal_ending_t, begin),
               "as they lie in the line");

/** What a slot keeps of the ranks that its dispatch is without. */
typedef struct normal_left {
    /* the routing of the slot without ranks that are out: rank_rows and what follows from it are its own */
    normal_routing_t narrow;
    uint32_t outs; /* ranks that were out when it began */
    int changed;   /* when the records were here, others were, too */
    int uncounted; /* selections of the local experts are to be counted when the rows are here */
    int placed;    /* grants are of this dispatch */
    /* where some ranks are not mapped, [R]: */
    uint64_t *grants;         /* first row of each rank here, where some ask: unchanged until flushed */
    uint64_t *told;           /* epoch of the dispatch in which the rank was told its grant */
    uint64_t *granted;        /* first row of this rank there, as each rank has it */
    normal_ending_t *endings; /* unchanged until flushed */
} normal_left_t;

static inline normal_left_t *normal_left(const normal_t *mode, const xep_op_t *op)
{
    return normal_slot(mode, op->slot)->left;
}

/** Lays it for each slot, and what a combine lists, in the arena. */
void normal_lay_left(normal_t *mode, xep_carve_t *arena);

/** Ranks that are out of operations that begin. */
uint32_t normal_count_outs(const normal_t *mode);

/** Steps of dispatches and combines; and, besides, where receivers may have to say where rows go: normal_grants.c. */
extern const xep_step_t normal_without_steps[], normal_granting_steps[];

/** Step: rows and done, fenced by "storing". */
xep_status_t normal_move_masked(void *mode, xep_op_t *op);

/** Once the records are taken: whether this rank cannot know where its rows go, and those of others have come. */
static inline int normal_must_ask(const normal_t *mode, const xep_op_t *op)
{
    return !mode->kit.all_mapped && normal_left(mode, op)->changed && xep_kit_state(op)->verdict == XEP_OK;
}

#endif
