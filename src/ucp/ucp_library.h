/* SPDX-License-Identifier: BSD-3-Clause */

/** Which libucp this process is bound to at run time: it may be another than the headers'. */
#ifndef XEP_UCP_LIBRARY_H
#define XEP_UCP_LIBRARY_H

/** "1.13.1"; static storage. */
const char *xep_ucp_version(void);

/** major * 100 + minor */
unsigned xep_ucp_version_number(void);
enum { XEP_UCP_SECOND_PROTOCOLS = 116 }; /* libucp from which its second generation of protocols is the default */

/** The file it was loaded from; "" when the loader cannot tell. Valid as long as the process. */
const char *xep_ucp_path(void);

#endif
