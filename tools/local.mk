# SPDX-License-Identifier: BSD-3-Clause
# The programs.

bin_PROGRAMS = xep_info xep_perf xep_run xep_trace
xep_info_SOURCES = %D%/info/xep_info.c %D%/info/info_metrics.c %D%/info/info_metrics.h
xep_info_CPPFLAGS = $(public_cppflags) -I$(srcdir)/src/report
xep_info_LDFLAGS =
xep_info_LDADD = libxep.la

xep_perf_SOURCES = \
	%D%/perf/perf.h \
	%D%/perf/perf_balance.c \
	%D%/perf/perf_by_hand.c %D%/perf/perf_by_hand.h \
	%D%/perf/perf_by_hand_cuda.c \
	%D%/perf/perf_by_hand_limit.c \
	%D%/perf/perf_by_hand_peer.c \
	%D%/perf/perf_check.c \
	%D%/perf/perf_cuda.c %D%/perf/perf_cuda.h \
	%D%/perf/perf_machine.c %D%/perf/perf_machine.h \
	%D%/perf/perf_ops.c %D%/perf/perf_ops.h \
	%D%/perf/perf_options.c %D%/perf/perf_options.h \
	%D%/perf/perf_options_cluster.c \
	%D%/perf/perf_options_resolve.c \
	%D%/perf/perf_report.c %D%/perf/perf_report.h \
	%D%/perf/perf_report_json.c \
	%D%/perf/perf_say.c %D%/perf/perf_say.h \
	%D%/perf/perf_setup.c \
	%D%/perf/perf_simulate.c %D%/perf/perf_simulate.h \
	%D%/perf/perf_simulate_placer.c \
	%D%/perf/perf_simulate_report.c \
	%D%/perf/perf_time.c %D%/perf/perf_time.h \
	%D%/perf/perf_time_waits.c \
	%D%/perf/xep_perf.c
xep_perf_CPPFLAGS = $(public_cppflags) \
	-I$(srcdir)/oracle -I$(srcdir)/src/cost -I$(srcdir)/src/balance -I$(srcdir)/plugins/kernels
xep_perf_LDFLAGS =
xep_perf_LDADD = libxep_cost.la libxep_kernels.la libxep_oracle.la libxep.la

xep_run_SOURCES = \
	%D%/run/xep_run.c %D%/run/run.h \
	%D%/run/run_environ.c \
	%D%/run/run_keeper_folder.c \
	%D%/run/run_keeper.c %D%/run/run_keeper.h \
	%D%/run/run_options.c \
	%D%/run/run_output.c %D%/run/run_output.h \
	%D%/run/run_pmix.c %D%/run/run_pmix.h \
	%D%/run/run_say.c \
	%D%/run/run_names.c %D%/run/run_names.h \
	%D%/run/run_server.c %D%/run/run_server.h \
	%D%/run/run_spawn.c %D%/run/run_spawn.h \
	%D%/run/run_watch.c %D%/run/run_watch.h
xep_run_CPPFLAGS = $(public_cppflags) -I$(srcdir)/tools/trace $(PMIX_CFLAGS) -DRUN_PMIX_DIR='"$(PMIX_LIBDIR)"'
xep_run_LDFLAGS =
xep_run_LDADD = libxep_trace.la

# the merge of traces, which xep_run does itself at the end of a job
noinst_LTLIBRARIES += libxep_trace.la
libxep_trace_la_SOURCES = \
	%D%/trace/trace_clock.c %D%/trace/trace_clock.h \
	%D%/trace/trace_flow.c %D%/trace/trace_flow.h \
	%D%/trace/trace_json.c %D%/trace/trace_json.h \
	%D%/trace/trace_merge.c %D%/trace/trace_merge.h \
	%D%/trace/trace_journal.c %D%/trace/trace_journal.h \
	%D%/trace/trace_say.c %D%/trace/trace_say.h
libxep_trace_la_CPPFLAGS = $(public_cppflags) -I$(srcdir)/src/util
xep_trace_SOURCES = %D%/trace/xep_trace.c
xep_trace_CPPFLAGS = $(public_cppflags)
xep_trace_LDFLAGS =
xep_trace_LDADD = libxep_trace.la
