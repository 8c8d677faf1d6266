/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * What is wrong with options, and what --help says before and behind the list of them, which perf_options.c prints from
 * its own table: two texts, as the list lies between them.
 */
#include "perf_options.h"

#include <stdarg.h>
#include <stdio.h>

int perf_refuse(perf_options_t *options, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(options->why, sizeof options->why, format, args);
    va_end(args);
    return -1;
}

const char perf_help_intro[] =
    "usage: xep_perf [OPTION]...          one rank\n"
    "       LAUNCHER -n RANKS xep_perf [OPTION]...\n"
    "Times dispatch and combine, and what this machine needs at least to copy the same rows.\n"
    "\n";

/* What each figure is, under the name that perf_report.c prints. man/xep_perf.1 says the same. */
const char perf_help_explanation[] =
    "\n"
    "Routings, the K experts of a token out of E:\n"
    "  uniform    any of them\n"
    "  group:G,N  experts of N out of G groups\n"
    "  zipf:S     the n-th most popular expert in proportion to 1/n^S; the seed decides which is n-th\n"
    "  one-rank   experts of rank 0 alone; -1 where it owns fewer than K\n"
    "  self       experts of the token's own rank alone; -1 where it owns fewer than K\n"
    "  file:PATH  lines \"RANK TOKEN E0 E1 ..\", at most K experts, -1 or nothing for none, # comments. A rank has\n"
    "             as many tokens as its highest TOKEN plus 1, at most --tokens where that is given. Every rank\n"
    "             reads it.\n"
    "\n"
    "Owners of the E experts, with an owner map:\n"
    "  block        blocks in rank order, as without a map\n"
    "  cyclic       expert e on rank e modulo the ranks\n"
    "  greedy       experts by falling load, each to the rank that has least load so far\n"
    "  random:SEED  each expert on any rank\n"
    "  split:M      none on the first M ranks, blocks on the others\n"
    "  FILE         E ranks, between spaces or lines. Every rank reads it.\n"
    "\n"
    "What is printed for an operation, dispatch or combine:\n"
    "  rows       received by all ranks: one for each (token, rank) that is selected; by expert, for each selection\n"
    "  us         median, p10, p90, p99 over the iterations. An iteration starts at a barrier. On one machine,\n"
    "             where all ranks read one clock, it lasts from the first rank's begin to the last rank's end;\n"
    "             elsewhere, as long as the slowest rank takes. The experts write all outputs between dispatch\n"
    "             and combine; that is not timed.\n"
    "  cpu us     processor time of all ranks together, median\n"
    "  GB/s       logical: the rows of all selections; dedup: rows received by all ranks; wire: those of other\n"
    "             ranks; deepep: rows a rank receives, its own included, as DeepEP counts. Over the median.\n"
    "             By expert, wire and dedup of dispatch count a row once for each rank that reads it.\n"
    "  limit us   the time the same processes need for the bare minimum in private memory, all of them at once.\n"
    "             Dispatch: plan (not with --cached), read each row once, cast it if the dispatch does, store it\n"
    "             everywhere it goes (by expert on one machine: into memory of all ranks, from where each rank copies\n"
    "             what its experts get). Combine: read each contribution once, store one sum. Measured between the\n"
    "             iterations, with cached and with streaming stores; the least of all counts.\n"
    "  ratio      median / limit\n"
    "  peer us    with --peer: what a program written by hand needs, which stores rows into the receivers' shared\n"
    "             memory and sums them there, with counts and flags but no other feature; timed as the limit is\n"
    "\n"
    "With --in-place: rows are written into the buffer's send memory, which is not timed. Printed are a dispatch\n"
    "that leaves them there (in place, not read; the ratio is to the limit of copying), the same with one read of\n"
    "every byte of every row by each rank that received it, in one thread, and that read alone of rows that a\n"
    "dispatch has copied. The ratios of the last two are to copying and reading: below 1, reading in place is\n"
    "faster even if all rows are read.\n"
    "\n"
    "With --recv-rows N: the same operations on a second buffer, whose slots have room for N rows (those of the\n"
    "first have room for all rows of this routing). rows: a dispatch and the pieces after its first one, each of\n"
    "which takes the outputs of the piece before along; combine: sends those of the last piece. The experts write\n"
    "nothing between pieces. The ratio compares both together with dispatch and combine of the first buffer.\n"
    "\n"
    "With --waits, for each rank, in us of one operation: how long another rank waited for it on average, how\n"
    "long any rank did at most, and in how many operations (percent). The rank that all others wait for is the\n"
    "slow one. A wait begins when a receiver looks for what a rank sends and it has not arrived, and ends when it\n"
    "has. The JSON also has waited_us: the average for each rank that waited.\n"
    "\n"
    "With --memory cuda an operation ends when its stream is empty, so the time includes calls and waits. \"on the\n"
    "device\" is how long it was on the stream, measured by events, on the rank that took longest. The limit is\n"
    "what the same ranks need to copy the same bytes, at once, in one piece for each peer (dispatch: to the peers;\n"
    "combine: from them), by kernels to all peers at once or by the driver to one after the other, whichever is\n"
    "faster. Rank n uses device n modulo the number of devices. Between dispatch and combine all outputs are set\n"
    "to one value unless they are compared.\n"
    "\n"
    "With --simulate RANKS,PER_NODE nothing is run and no launcher is needed. The routing is made for a job of up\n"
    "to 4096 ranks that does not exist, on nodes of PER_NODE ranks (8+4: of 8 and 4 in turn), and counted for two\n"
    "paths between nodes: flat, one row for each rank that needs it; nodes, one row for each node that needs it,\n"
    "which a rank there passes on, and one sum of the node on the way back. With --mode ll a combine has a row\n"
    "for each selection on both paths. Printed are rows, bytes and messages of a rank, within its node and over\n"
    "the network, the memory that a rank shares, the time by a model, and the faster path. --rates says what the\n"
    "machines can do, as NAME=NUMBER separated by commas; 0 means unlimited:\n"
    "  network    GB/s of a node over the network, in each direction, without headers of packets; default 12\n"
    "  rank       GB/s of one rank over the network; default 0\n"
    "  copy       GB/s that one rank copies or sums; default 8\n"
    "  memory     GB/s that the ranks of a node copy or sum together; default 0\n"
    "  latency    us until a signal over the network is seen; default 10\n"
    "  message    us of a processor for each message over the network, sent or received; default 1\n"
    "  piece      KiB, most of a message with rows; default 512\n"
    "  passing    rows that a rank has room for while they pass through it; default twice its tokens\n"
    "\n"
    "With --balance KIB: dispatch, experts that multiply each row by a matrix of KIB of bf16, combine; each iteration\n"
    "once with experts at their owners and once with XEP_DISPATCH_BALANCE. Weights of other ranks are read where they\n"
    "are (xep_weights_of()). imbalance is that of selections, max / mean over ranks; layer us the wall time of the\n"
    "slowest rank, experts us the processor time of the experts of the busiest one, medians.\n"
    "\n"
    "With --placement a line for each of some placements: blocks; greedy, as --owners has it; replicas of the busiest\n"
    "experts on the ranks with least load (XEP_BALANCE_LEAST_LOADED); even (XEP_BALANCE_EVEN). imbalance is that of\n"
    "selections, max / mean over ranks; rows those of the busiest rank; us of a dispatch and its combine, without\n"
    "experts. Before one knows whether it would help, record a routing (XEP_RECORD) and take --routing file:FILE.\n"
    "\n"
    "Exit status: 0; 1 when a check or an operation failed; 2 for wrong options.\n";
