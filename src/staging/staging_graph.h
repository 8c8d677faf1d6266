/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Captured operations (xep/captured.h): what a launch asks the host, twice. Needs a thread that makes progress, rows by
 * expert or a combine, and no cached routing or direct rows.
 *
 *  capture  a record keeps the arguments, which are checked, and the nodes are enqueued. The call itself is an
 *           operation without tokens, by which the mode says where rows will be, and all ranks that they capture alike.
 *  first    the record's copies in become the list that the device is answered with.
 *  second   the operation begins, as one that is called after its stream has come; the thread tests it until it ends.
 *           Its copies out are the list of the answer. After an error the buffer is broken, and the list is empty.
 *
 * An operation of a launch says which record it is where others count the calls that they have refused (request.h). So
 * where ranks launch in other orders it ends with XEP_ERR_MISMATCH on all of them. A call that the mode refuses leaves
 * nodes in the graph, but is no operation: its record has no number, as other ranks may have none of it, and what its
 * nodes ask is answered with empty lists.
 *
 * A record's handle has to keep its slot. Launches of one that was released, and of records from before a reset, break
 * the buffer.
 */
#ifndef XEP_STAGING_GRAPH_H
#define XEP_STAGING_GRAPH_H

#include <xep/captured.h>

#include "buffer.h"
#include "request.h"
#include "staging_slots.h"

/** With a thread of progress, and where the mode has the kernels: else a no-op, and captures are refused. */
xep_status_t xep_graphs_open(xep_buffer_t *buffer);
/** At a reset, once the device is still: forgets what was captured, and asks that were cut short. */
void xep_graphs_forget(xep_buffer_t *buffer);
/** Ends what a launch still does, before the device is waited for. Returns whether anything was captured. */
int xep_graphs_stop(xep_buffer_t *buffer);
void xep_graphs_close(xep_buffer_t *buffer);

/* ---- between the files of this room ---- */

/** Copies for the device to make, in place of a device that copies are enqueued on. */
typedef struct xep_copy_list {
    xep_heap_device_t as; /* first */
    xep_heap_device_ops_t heap_ops;
    xep_device_ops_t ops;
    xep_device_t *device;
    xep_captured_copy_t *copies; /* [most] */
    uint32_t count, most;
    const char *pinned; /* the heap, with what is copied to the host, and most of what is copied from there */
    uint64_t pinned_bytes;
    char *kept; /* [kept_most] pinned: copies of the rest, which kernels do not reach */
    uint64_t kept_bytes, kept_most;
    int is_shown;       /* copies are to the device */
    int is_capture;     /* addresses are checked, and no copies kept */
    int rows_on_device; /* else what xep_staging_take_copies() finds out about recv_rows_p */
} xep_copy_list_t;

void xep_copy_list_begin(xep_copy_list_t *list, xep_heap_device_t *device);

/** What the caller gave. */
typedef struct xep_captured_record {
    xep_op_kind_t kind;
    xep_handle_t *handle;
    uint32_t times_free; /* of the handle */
    xep_dispatch_args_t dispatch;
    xep_combine_args_t combine;
    int rows_on_device;
    uint32_t number; /* from 1 since the reset, among those that all ranks have; 0: the mode has refused it here */
} xep_captured_record_t;

typedef struct xep_graphs {
    xep_buffer_t *buffer;
    xep_group_task_t task; /* from the first capture on */
    xep_plugin_ref_t kernels;
    void *module, *ask, *copies;
    xep_captured_board_t *board;
    void *words;
    xep_copy_list_t list;
    xep_captured_record_t *records; /* [nrecords] since the reset; others before them, so that no number comes twice */
    uint32_t nrecords, first;
    uint32_t numbered; /* the last one's number */
    int is_open;       /* something was captured */
    uint32_t answered;
    enum { GRAPHS_WAIT, GRAPHS_HAVE_TAKEN, GRAPHS_RUN } state;
    uint32_t now;        /* the record that it is about */
    xep_request_t taken; /* GRAPHS_HAVE_TAKEN: with the arguments of the mode */
    xep_request_t *req;  /* GRAPHS_RUN */
    uint64_t until_ns;   /* when a record that cannot go on is given up; 0: it can */
} xep_graphs_t;

/** xep_staging_take_copies(), with the copies in the list. */
xep_status_t xep_graphs_take(xep_graphs_t *graphs, xep_request_t *req, int is_capture);

/** Goes on with what launches ask; the caller holds the buffer. As xep_group_task_t.run: if no other thread does. */
void xep_graphs_look(xep_buffer_t *buffer);
void xep_graphs_run_task(xep_group_task_t *task);

#endif
