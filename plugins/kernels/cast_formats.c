/* SPDX-License-Identifier: BSD-3-Clause */

/* The table of the casts. */
#include "cast_formats.h"

#define RULE_(_quant, _name, _dtype, _element, _scale, _group) \
    [XEP_QUANT_##_quant] = {_dtype, _element, _scale, _group},

static const xep_cast_rule_t rules[XEP_CAST_TABLE] =
    {[XEP_QUANT_E4M3] = {XEP_E4M3, XEP_ELEMENT_E4M3, XEP_SCALE_FP32, XEP_CAST_GROUP},
     [XEP_QUANT_E4M3_POW2] = {XEP_E4M3, XEP_ELEMENT_E4M3, XEP_SCALE_FP32, XEP_CAST_GROUP},
     [XEP_QUANT_UE8M0] = {XEP_E4M3, XEP_ELEMENT_E4M3, XEP_SCALE_E8M0, XEP_CAST_GROUP},
     XEP_CAST_BLOCKS(RULE_)};

const xep_cast_rule_t *xep_cast_rule(xep_quant_t quant)
{
    return &rules[quant];
}

/* Scales are words: bytes come four to an int32. */
int xep_cast_format(unsigned quant, uint64_t hidden, xep_cast_format_t *format_p)
{
    if (quant >= XEP_CAST_TABLE || rules[quant].group == 0) return 0;
    const xep_cast_rule_t *rule = &rules[quant];
    const uint64_t groups = hidden / rule->group + (hidden % rule->group != 0);
    const int is_byte = rule->scale == XEP_SCALE_E8M0 || rule->scale == XEP_SCALE_E4M3;
    format_p->dtype = rule->dtype;
    format_p->scales_dtype = is_byte ? XEP_INT32 : XEP_FP32;
    format_p->row_bytes = (hidden * rule->element.bits + 7) / 8;
    format_p->scale_words = is_byte ? (groups + 3) / 4 + (rule->scale == XEP_SCALE_E4M3) : groups;
    if (rule->scale == XEP_SCALE_GIVEN) format_p->scale_words = 0;
    return 1;
}
