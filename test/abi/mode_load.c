/* SPDX-License-Identifier: BSD-3-Clause */

/** Asks for the size of a buffer of the mode argv[1], which loads it: prints the status and the reason. */
#include <stdio.h>

#include <xep/xep.h>

int main(int argc, char **argv)
{
    xep_buffer_params_t params = XEP_BUFFER_PARAMS_INIT;
    xep_buffer_size_t size = XEP_BUFFER_SIZE_INIT;
    params.mode = argc > 1 ? argv[1] : NULL;
    params.experts = params.topk = params.hidden = 1;
    params.tokens = 1;
    xep_status_t status = xep_buffer_size(&params, 1, &size);
    printf("%s %s\n", xep_status_name(status), status == XEP_OK ? "" : xep_last_error());
    return status == XEP_OK ? 0 : 1;
}
