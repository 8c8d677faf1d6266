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

/** Arrays of a slot's narrow routing, in the arena. */
void normal_lay_narrow(const xep_shape_t *shape, xep_carve_t *arena, normal_routing_t *narrow);

/* ---- normal_masks.c ---- */

/** Steps, and what one of them stores. */
xep_status_t normal_agree_masked(void *mode, xep_op_t *op);
xep_status_t normal_move_masked(void *mode, xep_op_t *op);
void normal_store_done_masked(const void *mode, const xep_op_t *op, uint32_t rank);
xep_status_t normal_wait_rows_masked(void *mode, xep_op_t *op);
xep_status_t normal_compare_masked(void *mode, xep_op_t *op);

/** Step: sums rows, but those of ranks that are out; or decodes and sums them (normal_coded.h). */
xep_status_t normal_sum_listed(void *mode, xep_op_t *op);

/* ---- normal_grants.c: where rows go that their sources cannot place themselves ---- */

/** Once the records are taken: whether this rank cannot know where its rows go, and those of others have come. */
int normal_must_ask(const normal_t *mode, const xep_op_t *op);

/** Step: the dispatch begins. */
xep_status_t normal_note_outs(void *mode, xep_op_t *op);

/** Step: asks all ranks for room, if it must. */
xep_status_t normal_ask_for_grants(void *mode, xep_op_t *op);

/** Step, which has granted_word: until this rank knows where its rows go. */
xep_status_t normal_await_grants(void *mode, xep_op_t *op);
const _Atomic uint64_t *normal_granted_word(const void *mode, const xep_op_t *op, uint32_t rank, uint64_t *value_p);

/** Tells ranks that ask where their rows go, for as long as op waits: they may ask at any time. XEP_OK, or an error. */
xep_status_t normal_serve_grants(normal_t *mode, xep_op_t *op);

/** Whether all have put their rows where this rank has granted it, if it has. XEP_ERR_PROTOCOL: one has not. */
xep_status_t normal_check_begins(const normal_t *mode, xep_op_t *op);

/** What a combine stores with its offer; and the step that takes where mapped owners have rows of this rank. */
void normal_store_offer_and_begin(const void *mode, const xep_op_t *op, uint32_t rank);
xep_status_t normal_take_begins(void *mode, xep_op_t *op);

#endif
