/* SPDX-License-Identifier: BSD-3-Clause */

#include "carve.h"

void xep_carve_slots(const xep_shape_t *shape, void *layout, xep_carve_t region[XEP_REGIONS], xep_carve_slot_fn lay)
{
    xep_carve_t slot[XEP_REGIONS] = {0};
    lay(shape, layout, slot);
    for (int i = 0; i < XEP_REGIONS; i++) {
        uint64_t bytes = slot[i].end;
        region[i].overflow |= slot[i].overflow;
        slot[i] = (xep_carve_t){.end = xep_carve_offset(&region[i], shape->slots, bytes), .stride = bytes};
    }
    lay(shape, layout, slot);
}
