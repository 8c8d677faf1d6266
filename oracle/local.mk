# SPDX-License-Identifier: BSD-3-Clause
# The oracle: what xep_perf --check and the tests know of every rank's data.
noinst_LTLIBRARIES += libxep_oracle.la
libxep_oracle_la_SOURCES = \
	%D%/oracle.h %D%/oracle_alloc.h %D%/oracle_random.h \
	%D%/oracle_check_by_expert.c \
	%D%/oracle_check_by_rank.c \
	%D%/oracle_check_instances.c \
	%D%/oracle_cast.c %D%/oracle_cast.h \
	%D%/oracle_check.c %D%/oracle_check.h \
	%D%/oracle_combine.c %D%/oracle_combine.h \
	%D%/oracle_data.c %D%/oracle_data.h \
	%D%/oracle_differ.c %D%/oracle_differ.h \
	%D%/oracle_hash.c %D%/oracle_hash.h \
	%D%/oracle_layout.c \
	%D%/oracle_cast_logfmt.c \
	%D%/oracle_number.c %D%/oracle_number.h \
	%D%/oracle_owners.c %D%/oracle_owners.h \
	%D%/oracle_check_recv.c \
	%D%/oracle_payloads.c %D%/oracle_payloads.h \
	%D%/oracle_pieces.c %D%/oracle_pieces.h \
	%D%/oracle_route_file.c %D%/oracle_route_file.h \
	%D%/oracle_route_parse.c %D%/oracle_route_parse.h \
	%D%/oracle_routing.c %D%/oracle_routing.h \
	%D%/oracle_traffic.c %D%/oracle_traffic.h
libxep_oracle_la_CPPFLAGS = $(public_cppflags)
libxep_oracle_la_LIBADD = -lm
