/* SPDX-License-Identifier: BSD-3-Clause */

/** The counters of running processes, as Prometheus reads them. */
#ifndef XEP_INFO_METRICS_H
#define XEP_INFO_METRICS_H

/** Prints those of count processes; pids are numbers in text. Returns the status to exit with, after a sentence. */
int info_metrics_print(char *const *pids, int count);

#endif
