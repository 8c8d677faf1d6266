/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Rows that travel over the wire: a flow goes to each other node or, flat, to each rank that is not mapped, which then
 * is a node of one (forwarders.h). It has the rows that any rank there needs, in the order of tokens.
 *
 * The head of a flow is the word of its notice: (epoch n, tokens), how many tokens' rows are there, from the first on.
 * Few rows go before the notice, whose word then has all tokens. Else the notice goes first, with none, and the rows
 * follow in parts (xep_env_t.part_bytes, or half a receive ring), each with the word behind it. Receivers copy rows
 * meanwhile.
 *
 * by nodes (xep_shape_t.by_nodes) what a dispatch says to another node goes once to each, to this rank's forwarder f
 * there (forwarders.h): the packet, with the rows that any rank of that node needs, into what was delivered to f
 * [i][line], as one of its upstream ranks, and f's notice [i][self]. f and its local ranks, which map its heap, read it
 * there: the notice, whose word they wait for, and the packet. So no rank moves or says anything in passing: f has to
 * drive its wire, which it does until its own operation ends, and that waits for all these words, with an error, too. A
 * packet is complete for whoever has loaded the word behind it with acquire (wire.h). Neither is overwritten before all
 * local ranks have read it for the reason that holds for all packets and notices: the source begins turn q + ring when
 * it has the notices of turn q + slots of all ranks, which they send when they have ended turn q.
 *
 * A receive ring, which has the items of one source, may not have room for all of them (recv_ring_bytes). Then it is a
 * ring: item j of those that come lies at j % room, where room is how many fit, which source and readers know from the
 * notice. The reader counts them in the head of the packet. A source with at most room items does all as above. One
 * with more crowds the receive ring: it sends the parts that have room, and the others when rows were taken. The tail
 * of the flow is that word: when the receiver has copied what is there, for all tokens before t, it sets
 * taken[i][receiver] = (n, t) at the source. By nodes each local rank says so to f, in locals_taken, and f, when all
 * have, to the source. That sends a part that ends before row e when taken has the token of row e - room - 1; its
 * dispatch ends when all parts have gone. After a verdict that is an error nothing more is taken, and only words are
 * sent, for which readers wait. No rank waits for ever: what readers take depends only on notices, which all send
 * first, not on what they send or have taken of others; a part without room does not hold up parts to other ranks.
 * Words of a turn are read before the ring comes round, as packets are: a source ends the turn when all words that it
 * needs have come. test/model/model_recv_ring.pml.
 */
#ifndef XEP_LL_FLOW_H
#define XEP_LL_FLOW_H

#include "ll.h"

/**
 * Items of a packet that a receive ring holds, where those that come lie one behind the other; 0: they lie by token.
 */
static inline uint64_t ll_recv_ring_room(const ll_t *mode, const ll_packet_t *packet)
{
    return mode->layout.recv_ring_bytes / packet->stride;
}

/* ---- ll_flow_send.c: as a source ---- */

/** Step: lists what goes where, and cuts it into parts. */
xep_status_t ll_begin_flows(void *mode, xep_op_t *op);

/** xep_transfer_fn: head, items unless they are in parts, notice. */
int ll_packet_transfer(const void *mode, const xep_op_t *op, uint32_t rank, uint32_t number, xep_transfer_t *transfer);

/** Sends parts as far as there is room, and all of them: XEP_INPROGRESS until all have gone. */
xep_status_t ll_send_parts(ll_t *mode, xep_op_t *op);
xep_status_t ll_send_all_parts(ll_t *mode, xep_op_t *op);

/** The word of rank that makes room for the last part to it: it has taken the rows before. */
const _Atomic uint64_t *ll_room_word(const void *mode, const xep_op_t *op, uint32_t rank, uint64_t *value_p);

/* ---- ll_flow_receive.c: as a receiver ---- */

/** The entry in both delivered areas of the packet of an upstream rank of the rank that has it. */
uint64_t ll_delivered_entry(const ll_t *mode, const xep_op_t *op, uint32_t line);

/** The entry of this rank's packet at a rank to which it is sent. */
uint64_t ll_delivery_entry(const ll_t *mode, const xep_op_t *op, uint32_t rank);

/** The word that says that all rows of a source are here; its notice is taken. */
const _Atomic uint64_t *ll_rows_word(const void *mode, const xep_op_t *op, uint32_t source, uint64_t *value_p);

/** Tokens of a source whose rows are here. */
uint64_t ll_tokens_here(const ll_t *mode, const xep_op_t *op, uint32_t source);

/** Notes how many items of a source come here. XEP_ERR_PROTOCOL: they cannot all be here already. */
xep_status_t ll_note_items(const ll_t *mode, xep_op_t *op, uint32_t source, uint64_t items);

/**
 * Step, where receive rings may be crowded: finds in which item of its packet each pick is. XEP_ERR_PROTOCOL: as above.
 */
xep_status_t ll_find_items(void *mode, xep_op_t *op);

/* ---- ll_forward.c: as a receiver and as a forwarder, which flat is the receiver itself ---- */

/** Offset of the word in which rank says, in all heaps, what it has taken. */
uint64_t ll_taken_offset(const ll_t *mode, const xep_op_t *op, uint32_t rank);

/** Tells the sources of crowded receive rings whose rows were copied. */
xep_status_t ll_tell_taken(ll_t *mode, const xep_op_t *op);

/* ---- ll_paths.c ---- */

void ll_tell_traffic(const xep_shape_t *shape, xep_traffic_t *dispatch, xep_traffic_t *combine);

#endif
