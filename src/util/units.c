/* SPDX-License-Identifier: BSD-3-Clause */

#include "units.h"

#include <inttypes.h>
#include <stdio.h>

const char *xep_units_of(uint64_t bytes, char text[XEP_UNITS_BYTES])
{
    const char *unit = "KMGTPE";
    double value = (double)bytes / 1024;
    for (; value >= 1024; value /= 1024) unit++;
    if (bytes < 1024) snprintf(text, XEP_UNITS_BYTES, "%" PRIu64 " bytes", bytes);
    else snprintf(text, XEP_UNITS_BYTES, "%.2f %ciB", value, *unit);
    return text;
}
