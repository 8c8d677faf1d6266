/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Letters wait for whoever asks for them: a rank may call xep_group_shrink() long before this one does. What a rank
 * that runs wild sends is dropped when too much of it lies here.
 */
#include "group_mail.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "log.h"
#include "rest.h"

enum { MOST_HELD = 1 << 20 /* bytes of one rank: a step of a group's creation has two blobs of 64 KB */ };

/** In front of each message; written by the sender, checked by the receiver. */
typedef struct head {
    uint32_t kind;  /* xep_mail_kind_t */
    uint32_t bytes; /* that follow */
} head_t;
_Static_assert(sizeof(head_t) == 8, "wire format");

struct xep_inbox {
    pthread_mutex_t lock; /* of all below */
    xep_letter_t *first, **last;
    size_t *held; /* [nranks] bytes of each rank */
};

/* From the transport's thread, while another one may take letters. A full box drops the newest: the oldest are what the
 * reader needs next. */
static void keep(xep_inbox_t *inbox, uint32_t from, uint32_t kind, const void *data, size_t bytes)
{
    pthread_mutex_lock(&inbox->lock);
    xep_letter_t *letter = inbox->held[from] + bytes > MOST_HELD ? NULL : malloc(sizeof *letter + bytes);
    if (letter == NULL) {
        xep_log(XEP_LOG_WARN, "mail from rank %u was dropped: %zu bytes of it wait to be read (at most %d)", from,
                inbox->held[from], MOST_HELD);
    } else {
        *letter = (xep_letter_t){.from = from, .kind = kind, .bytes = bytes};
        memcpy(letter->data, data, bytes);
        *inbox->last = letter;
        inbox->last = &letter->next;
        inbox->held[from] += bytes;
    }
    pthread_mutex_unlock(&inbox->lock);
}

/* In the thread that makes progress, inside the transport: calls nothing of it. from is a rank. */
static void arrived(void *arg, uint32_t from, const void *message, size_t bytes)
{
    xep_group_t *group = arg;
    head_t head = {0};
    uint64_t word;
    if (bytes >= sizeof head) memcpy(&head, message, sizeof head);
    const char *data = (const char *)message + sizeof head;
    if (bytes < sizeof head || bytes - sizeof head != head.bytes || head.bytes > XEP_MAIL_BYTES) head.kind = 0;
    if (head.kind == XEP_MAIL_END && head.bytes == sizeof word) {
        memcpy(&word, data, sizeof word);
        atomic_store_explicit(&group->mailed_by, from, memory_order_relaxed);
        atomic_store_explicit(&group->mailed_end, word, memory_order_release);
    } else if (head.kind == XEP_MAIL_STATE || head.kind == XEP_MAIL_FRAGMENT) {
        keep(group->inbox, from, head.kind, data, head.bytes);
    } else if (head.kind != XEP_MAIL_FIRST) {
        xep_log(XEP_LOG_WARN, "invalid mail from rank %u was dropped: kind %u, %zu bytes", from, head.kind, bytes);
    }
}

/* Before anything can arrive: the transport calls arrived() from its first round on. */
xep_status_t xep_mail_open(xep_group_t *group)
{
    xep_inbox_t *inbox = calloc(1, sizeof *inbox);
    size_t *held = calloc(group->nranks, sizeof *held);
    if (inbox == NULL || held == NULL) {
        free(held);
        free(inbox);
        return xep_fail(XEP_ERR_NO_MEMORY, "no memory for the mail of %u ranks", group->nranks);
    }
    pthread_mutex_init(&inbox->lock, NULL);
    inbox->held = held;
    inbox->last = &inbox->first;
    group->inbox = inbox;
    group->transport->mailed = arrived;
    group->transport->mailed_arg = group;
    return XEP_OK;
}

void xep_mail_close(xep_group_t *group)
{
    if (group->inbox == NULL) return;
    for (xep_letter_t *letter = group->inbox->first, *next; letter != NULL; letter = next) {
        next = letter->next;
        free(letter);
    }
    pthread_mutex_destroy(&group->inbox->lock);
    free(group->inbox->held);
    free(group->inbox);
}

/* In one piece, from the stack: the transport has taken it when this returns. */
xep_status_t xep_mail_send(xep_group_t *group, uint32_t rank, xep_mail_kind_t kind, const void *data, size_t bytes)
{
    struct {
        head_t head;
        char data[XEP_MAIL_BYTES];
    } message;
    if (bytes > XEP_MAIL_BYTES)
        return xep_fail(XEP_ERR_INVALID, "mail too long: %zu bytes (at most %d)", bytes, XEP_MAIL_BYTES);
    message.head = (head_t){.kind = kind, .bytes = (uint32_t)bytes};
    memcpy(message.data, data, bytes);
    return group->transport->ops->mail(group->transport, rank, &message, sizeof message.head + bytes);
}

void xep_mail_leave(xep_group_t *group, int32_t most_ms)
{
    xep_transport_t *transport = group->transport;
    xep_rest_t rest;
    xep_rest_begin(&rest, XEP_REST_RARE, xep_deadline(most_ms));
    while (!transport->ops->mail_has_left(transport) && xep_rest_round(&rest, atomic_load(&transport->moves)))
        (void)transport->ops->progress(transport);
}

/* An empty letter, so that connections exist before they are needed in a hurry: when a rank has died, or an abort is to
 * be told. */
void xep_mail_begin(xep_group_t *group)
{
    for (uint32_t r = 0; r < group->nranks; r++)
        if (!group->peers[r].mapped) (void)xep_mail_send(group, r, XEP_MAIL_FIRST, "", 0);
}

/* All at once and under the lock for a moment only; the reader goes through them in peace. */
xep_letter_t *xep_mail_take(xep_group_t *group)
{
    xep_inbox_t *inbox = group->inbox;
    pthread_mutex_lock(&inbox->lock);
    xep_letter_t *first = inbox->first;
    inbox->first = NULL;
    inbox->last = &inbox->first;
    memset(inbox->held, 0, group->nranks * sizeof *inbox->held);
    pthread_mutex_unlock(&inbox->lock);
    return first;
}
