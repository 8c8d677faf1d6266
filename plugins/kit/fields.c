/* SPDX-License-Identifier: BSD-3-Clause */

#include "fields.h"

#include <string.h>

#include "agree.h"
#include "kit.h"
#include "rows.h"

static uint32_t align(uint64_t bytes, uint32_t alignment)
{
    return (uint32_t)((bytes + alignment - 1) & ~(uint64_t)(alignment - 1));
}

/* Behind the fields so far. */
static xep_field_t *add_field(xep_fields_t *fields, uint32_t bytes, uint32_t alignment)
{
    xep_field_t *field = &fields->of[fields->count++];
    field->bytes = bytes;
    field->at = align(fields->bytes, alignment);
    field->stride = align(bytes, alignment);
    fields->bytes = field->at + field->stride;
    return field;
}

/* FNV-1a by words; never 0. */
static uint32_t mix(uint32_t digest, const xep_payload_t *payload)
{
    digest = ((digest != 0 ? digest : 0x811c9dc5) ^ payload->bytes) * 0x01000193;
    digest = (digest ^ payload->alignment) * 0x01000193;
    return digest != XEP_AGREE_ANY ? digest | 1 : 1;
}

xep_status_t xep_fields_take(const xep_kit_t *kit, xep_op_t *op, uint32_t nscales, uint64_t room, xep_fields_t *fields)
{
    const xep_dispatch_args_t *args = op->dispatch;
    const uint32_t width = (uint32_t)xep_elem_bytes(args->scales_dtype);
    fields->count = fields->bytes = fields->digest = 0;
    xep_field_t *field = add_field(fields, nscales * width, width);
    field->from = args->scales, field->element = width;
    field->token_stride = args->scales_token_stride, field->step = args->scales_stride;
    for (uint32_t i = 0; i < args->npayloads; i++) {
        const xep_payload_t *payload = &args->payloads[i];
        field = add_field(fields, payload->bytes, payload->alignment);
        field->from = payload->data, field->element = payload->bytes;
        field->token_stride = (ptrdiff_t)payload->stride, field->step = payload->bytes;
        fields->digest = mix(fields->digest, payload);
        fields->shown[i] = *payload;
        fields->shown[i].stride = field->stride;
    }
    if (fields->bytes <= room * 4) return XEP_OK;
    return kit->env->fail(kit->env, op, XEP_ERR_INVALID,
                          "too little room beside a row: %llu words of 4 bytes (params.scales: at least %u for these "
                          "scales and payloads)",
                          (unsigned long long)room, (fields->bytes + 3) / 4);
}

/* Scales may lie by column. */
static void gather(const xep_field_t *field, const char *from, char *to)
{
    if (field->step == (ptrdiff_t)field->element) {
        memcpy(to, from, field->bytes);
        return;
    }
    for (uint32_t i = 0; i < field->bytes; i += field->element, from += field->step)
        memcpy(to + i, from, field->element);
}

void xep_fields_store(const xep_fields_t *fields, uint32_t first, const char *packed, uint64_t token, char *to,
                      uint64_t rows, uint64_t row)
{
    for (uint32_t i = first; i < fields->count; i++) {
        const xep_field_t *field = &fields->of[i];
        char *at = to + xep_field_place(field, rows, row);
        if (packed != NULL) memcpy(at, packed + field->at, field->bytes);
        else if (field->bytes != 0) gather(field, field->from + (ptrdiff_t)token * field->token_stride, at);
    }
}

void xep_fields_show(xep_fields_t *fields, char *memory, uint64_t recv_rows, xep_recv_t *recv)
{
    if (recv->nscales != 0) recv->scales = memory;
    if (fields->count == 1) return;
    recv->payloads = fields->shown;
    recv->npayloads = fields->count - 1;
    for (uint32_t i = 1; i < fields->count; i++)
        fields->shown[i - 1].data = memory + xep_field_place(&fields->of[i], recv_rows, 0);
}
