/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The oracle: what every dispatch and combine must give, computed by plain loops, one row at a time. It shares no code
 * with the library, so that the two do not share mistakes. xep_perf --check, the simulator and the tests on ranks
 * compare with it, byte for byte.
 *
 * The truth is xep.h: which rows arrive where and in which order (oracle_check.h), what the cast makes of them
 * (oracle_cast.h), what xep_layout() counts (oracle_layout.c). Sums are made in fp32 from +0: bias 0, bias 1, then by
 * rank in ascending order, or by expert fma(weight, y, sum) with k ascending; rounded once, to nearest even
 * (oracle_combine.h). NaN is the type's positive quiet NaN without payload.
 *
 * Every input is a pure function of (seed, rank, token, column), so a rank knows what all others sent without asking
 * them. The generator's floats are finite, of both signs, 0.125 <= |v| < 2, other types any bits; routings, and the
 * numbers they are drawn with, are those of oracle_routing.h. A test with data of its own brings an oracle_source_t.
 *
 * A test in five lines:
 *
 *   oracle_route_parse("uniform", &params.spec, ..);  oracle_routing_create(&params, &routing, ..);
 *   oracle_shape_t shape = {.routing = routing, .payload = seed, .hidden = H, .dtype = XEP_BF16, ..};
 *   oracle_fill_inputs(&shape, rank, x, idx, weights, NULL);  xep_dispatch(..);
 *   oracle_check_recv(&shape, rank, recv, &difference);  oracle_fill_outputs(&shape, rank, recv, y, stride);
 *   xep_combine(..);  if (oracle_check_combine(&shape, rank, 0, out, stride, &difference)) oracle_difference_text(..);
 */
#ifndef ORACLE_H
#define ORACLE_H

#include <xep/inspect.h>

#include "oracle_cast.h"
#include "oracle_check.h"
#include "oracle_combine.h"
#include "oracle_data.h"
#include "oracle_differ.h"
#include "oracle_hash.h"
#include "oracle_number.h"
#include "oracle_pieces.h"
#include "oracle_routing.h"
#include "oracle_traffic.h"

/* ---- oracle_layout.c ---- */

/** What xep_layout() must say of a rank's tokens. Arrays that are NULL are left out. 0, or 1 and what differs first. */
int oracle_check_layout(const oracle_shape_t *shape, uint32_t rank, uint32_t ranks_per_node, const xep_layout_t *layout,
                        oracle_difference_t *difference_p);

#endif
