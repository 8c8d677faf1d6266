/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * What travels beside a row: its scales, then the caller's payloads. They lie one behind the other on their way, at
 * aligned offsets, and each is an array of its own where it is received.
 */
#ifndef XEP_FIELDS_H
#define XEP_FIELDS_H

#include <stddef.h>
#include <stdint.h>

#include <xep/plugin.h>

typedef struct xep_kit xep_kit_t; /* kit.h */

/** What xep_agree() calls the digest. */
#define XEP_FIELDS_DIGEST "payloads, by a digest of their bytes and alignments"

typedef struct xep_field {
    const char *from; /* of token 0; NULL: scales that a cast makes where they travel */
    ptrdiff_t token_stride, step;
    uint32_t bytes, element; /* of a row, and of what lies step bytes apart in it; 0: there is none */
    uint32_t at;             /* beside a row that travels: a multiple of the alignment, as stride is */
    uint32_t stride;         /* between rows that are received */
} xep_field_t;

typedef struct xep_fields {
    uint32_t count;  /* 0, or the scales, which may have no bytes, and the payloads */
    uint32_t bytes;  /* beside a row */
    uint32_t digest; /* of the payloads' bytes and alignments; 0: there are none */
    uint32_t reserved;
    xep_field_t of[1 + XEP_PAYLOADS_MOST];
    xep_payload_t shown[XEP_PAYLOADS_MOST]; /* received */
} xep_fields_t;

/**
 * Lays what op's rows bring, in the room for scales: so many words. nscales: the caller's, or those of a cast.
 * XEP_ERR_INVALID: there is too little room.
 */
xep_status_t xep_fields_take(const xep_kit_t *kit, xep_op_t *op, uint32_t nscales, uint64_t room, xep_fields_t *fields);

/** Where a row of a field lies in memory that has all of its fields for so many rows. */
static inline uint64_t xep_field_place(const xep_field_t *field, uint64_t rows, uint64_t row)
{
    return field->at * rows + row * field->stride;
}

/**
 * Stores the fields from number first on as a row of memory for so many rows; 1 row is how they travel. They come from
 * the caller's arrays, or, if packed is not NULL, from where they have travelled.
 */
void xep_fields_store(const xep_fields_t *fields, uint32_t first, const char *packed, uint64_t token, char *to,
                      uint64_t rows, uint64_t row);

/** Of fields that there are: shows scales, if recv has some, and payloads; memory is for recv_rows rows. */
void xep_fields_show(xep_fields_t *fields, char *memory, uint64_t recv_rows, xep_recv_t *recv);

#endif
