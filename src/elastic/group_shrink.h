/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * A group of the ranks that are left of another one.
 *
 * Each survivor says to all others, by mail over the connections of the old group, whom it suspects, how far it is,
 * and who, as far as it has heard, is how far: shrink_state.h. Nobody leads, so nobody's death is special.
 *
 *  1. agree: what others suspect it suspects too. A rank that dies is suspected, and one that has said nothing when the
 *     deadline has passed. Done when all that it does not suspect say the same as itself.
 *  2. build: they make a group (group_create.c), with mail as its bootstrap. Its name is the set of suspects: mail of
 *     another attempt is told from it.
 *  3. ready: each says that it has made it. A rank that has heard this of all of them says that it is done, and returns
 *     the group.
 *
 * When somebody dies, or suspects another one, the ranks agree once more, and this time on who was ready too: if all
 * were, some rank may have returned already, so all that are left return the same group, a rank of which is dead. If
 * one was not, nobody has returned, and they build again, without it.
 *
 * Why all come to the same: sets only grow. Once a rank has said that it suspects another one, it becomes ready for no
 * group with that one, and listens to none of its words; so when all have said the same, nothing is left that could
 * change what they have heard of who was ready. A rank that has returned said so before, and is done for all.
 * test/model/model_shrink.pml tries all of it.
 *
 * What cannot be helped: a rank that lives but is cut off, or stopped for longer than the deadline, is out. If it was
 * ready, and had heard so of all, it may return a group whose other ranks have gone on in another one. Nobody in it
 * answers: its first call fails. One that sleeps through all of it and shares no memory with the others, which have
 * left when it wakes, finds itself alone; args.least is for that. Two groups that both work and share a rank there are
 * not.
 */
#ifndef XEP_ELASTIC_GROUP_SHRINK_H
#define XEP_ELASTIC_GROUP_SHRINK_H

#include "group.h"

/** xep_group_shrink(), arguments checked. */
xep_status_t xep_group_make_smaller(xep_group_t *group, const xep_shrink_args_t *args,
                                    xep_transport_open_fn open_transport, xep_group_t **group_p);

#endif
