/* SPDX-License-Identifier: BSD-3-Clause */

/* What a row is encoded and decoded by. */
#include "codec.h"

#include "logfmt.h"
#include "rows.h"

xep_decode_fn xep_decode_select(xep_simd_t simd)
{
#if defined(__x86_64__)
    if (simd >= XEP_SIMD_AVX2) return xep_decode_avx2;
#elif defined(__aarch64__)
    if (simd >= XEP_SIMD_NEON) return xep_decode_neon;
#else
    (void)simd;
#endif
    return xep_decode_scalar;
}

xep_codec_t xep_codec_select(xep_quant_t quant, float scale, size_t channels, int wide, xep_simd_t simd)
{
    xep_codec_t codec = {.quant = quant, .channels = channels, .scale = scale, .from = XEP_BF16};
    xep_cast_format_t format;
    codec.logfmt = xep_logfmt_select(simd);
    codec.stride = xep_row_stride(xep_logfmt_room(channels));
    if (!xep_cast_format(quant, channels, &format)) return codec; /* LogFMT */
    if (wide) codec.from = XEP_FP32;
    codec.cast = xep_cast_select(quant, codec.from, simd, scale);
    codec.scales = (format.row_bytes + 3) / 4 * 4;
    codec.bytes = codec.scales + format.scale_words * 4;
    codec.stride = xep_row_stride(codec.bytes);
    codec.decode = xep_decode_select(simd);
    return codec;
}

size_t xep_codec_encode(const xep_codec_t *codec, void *to, const void *row)
{
    if (codec->quant == XEP_QUANT_LOGFMT) return codec->logfmt.encode(to, row, codec->channels);
    codec->cast.row(&codec->cast, to, (char *)to + codec->scales, row, codec->channels, row);
    return codec->bytes;
}

size_t xep_codec_bytes(const xep_codec_t *codec, const void *from)
{
    return codec->quant == XEP_QUANT_LOGFMT ? xep_logfmt_bytes(from, codec->channels) : codec->bytes;
}

void xep_codec_decode(const xep_codec_t *codec, uint16_t *row, const void *from)
{
    if (codec->quant == XEP_QUANT_LOGFMT) codec->logfmt.decode(row, from, codec->channels);
    else codec->decode(codec->quant, row, from, (const char *)from + codec->scales, codec->channels, codec->scale);
}
