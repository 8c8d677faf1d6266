/* SPDX-License-Identifier: BSD-3-Clause */

/** Which file of this process an address came from: this library, one that it uses, or the program. */
#ifndef XEP_LOADED_H
#define XEP_LOADED_H

/**
 * The file that the code or data at address was loaded from, as the loader was given its name; "": from none. Valid
 * while that file is loaded: not to be freed, to be copied by whoever keeps it longer.
 */
const char *xep_loaded_from(const void *address);

#endif
