# SPDX-License-Identifier: BSD-3-Clause
# The library.

# What paths to other nodes cost, also of jobs that do not exist: for xep_perf --simulate
noinst_LTLIBRARIES += libxep_cost.la
libxep_cost_la_SOURCES = \
	%D%/cost/cost_rows.h %D%/cost/cost_rows.c %D%/cost/cost_model.h %D%/cost/cost_model.c \
	%D%/balance/plan.h %D%/balance/plan.c %D%/balance/plan_spread.c
libxep_cost_la_LIBADD = -lm

# libxep_all.la is what libxep.so is made of and what unit tests link, so that these reach what is not exported
noinst_LTLIBRARIES += libxep_all.la
libxep_all_la_SOURCES = \
	%D%/api/api.c %D%/api/api_check.h %D%/api/api_check.c \
 %D%/api/api_check_payloads.c %D%/api/api_check_pieces.c %D%/api/api_group.c %D%/api/api_rows.c \
	%D%/api/api_layout.c %D%/api/api_check_memory.c %D%/api/api_operations.c \
	%D%/api/api_requests.c %D%/api/api_weights.c %D%/api/api_check_require.c \
	%D%/request/packed_payloads.h %D%/request/packed_payloads.c \
	%D%/request/request.h %D%/request/request.c \
	%D%/request/request_advance.c %D%/request/request_begin.c %D%/request/request_end.c \
	%D%/request/request_trace.c %D%/request/request_wait.c \
	%D%/serve/server.h %D%/serve/server.c %D%/serve/server_begin.c %D%/serve/server_end.c \
	%D%/buffer/announce.h %D%/buffer/announce.c %D%/buffer/announce_begin.c %D%/buffer/announce_early.c \
	%D%/buffer/buffer.h %D%/buffer/buffer.c %D%/buffer/buffer_agree.h %D%/buffer/buffer_agree.c \
 %D%/buffer/buffer_create.c %D%/buffer/buffer_end.c \
 %D%/buffer/buffer_env.c \
	%D%/buffer/buffer_give_up.h %D%/buffer/buffer_give_up.c %D%/buffer/buffer_size.h %D%/buffer/buffer_size.c \
	%D%/buffer/heap.h %D%/buffer/heap.c %D%/buffer/heap_ranges.c %D%/buffer/layout.h %D%/buffer/layout.c \
	%D%/buffer/owners.h %D%/buffer/owners.c \
	%D%/balance/balance.h %D%/balance/balance.c %D%/balance/balance_round.c \
	%D%/buffer/mode.h %D%/buffer/mode.c %D%/buffer/path.h %D%/buffer/path.c \
	%D%/buffer/plugin_loader.h %D%/buffer/plugin_loader.c \
	%D%/buffer/buffer_agree_room.c %D%/buffer/mode_shape.c \
	%D%/staging/staging.h %D%/staging/staging.c %D%/staging/staging_copy.c %D%/staging/staging_layout.c \
	%D%/staging/staging_direct.c %D%/staging/staging_graph.h %D%/staging/staging_graph.c \
	%D%/staging/staging_graph_capture.c %D%/staging/staging_graph_list.c \
	%D%/staging/staging_show.c %D%/staging/staging_slots.h %D%/staging/staging_take.c %D%/staging/staging_wait.c \
	%D%/weights/weights.h %D%/weights/weights.c %D%/weights/weights_copy.c %D%/weights/weights_reduce.c \
	%D%/elastic/agreement.h %D%/elastic/agreement.c \
	%D%/elastic/ballot.h %D%/elastic/ballot.c \
	%D%/elastic/group_shrink_boot.c \
	%D%/elastic/frames.h %D%/elastic/frames.c \
	%D%/elastic/group_grow.h %D%/elastic/group_grow.c %D%/elastic/group_grow_join.c \
	%D%/elastic/group_shrink.h %D%/elastic/group_shrink.c %D%/elastic/rendezvous.h %D%/elastic/rendezvous.c \
	%D%/elastic/members.h %D%/elastic/members.c %D%/elastic/members_device.c \
	%D%/elastic/members_mapped.c %D%/elastic/members_wait.c \
	%D%/elastic/members_wire.c %D%/elastic/joiners.h %D%/elastic/joiners.c %D%/elastic/group_shrink_ctl.c \
	%D%/group/boot.h %D%/group/boot.c %D%/group/boot_callback.c \
	%D%/group/device.h %D%/group/group.h %D%/group/group.c %D%/group/group_abort.h \
	%D%/group/group_abort.c %D%/group/group_account.h %D%/group/group_account.c \
	%D%/group/group_account_ask.c %D%/group/group_doorbell.h %D%/group/group_doorbell.c %D%/group/group_control.h \
	%D%/group/group_control.c %D%/group/group_create.c %D%/group/group_exchange.h \
	%D%/group/group_exchange.c %D%/group/group_hello.c %D%/group/group_ctl.h \
	%D%/group/group_ctl.c %D%/group/group_out.h %D%/group/group_out.c %D%/group/group_signal.h \
	%D%/group/group_signal.c %D%/group/group_wait.h \
	%D%/group/group_wait.c %D%/group/neighbours.h %D%/group/neighbours.c \
	%D%/group/group_progress_thread.c %D%/group/transport.h \
	%D%/report/account.h %D%/report/account.c %D%/report/recording.h %D%/report/recording.c \
	%D%/report/counts.h %D%/report/wait_times.h %D%/report/wait_times.c \
	%D%/ucp/ucp_context.h %D%/ucp/ucp_context.c %D%/ucp/ucp_devices.h %D%/ucp/ucp_devices.c \
	%D%/ucp/ucp_protocol_gather.c %D%/ucp/ucp_heap.h %D%/ucp/ucp_heap.c \
	%D%/ucp/ucp_heartbeat.h %D%/ucp/ucp_heartbeat.c %D%/ucp/ucp_intake.h %D%/ucp/ucp_intake.c \
	%D%/ucp/ucp_transport_library.c \
	%D%/ucp/ucp_link.h %D%/ucp/ucp_link.c \
	%D%/ucp/ucp_registry.h %D%/ucp/ucp_registry.c \
	%D%/ucp/ucp_memory.h %D%/ucp/ucp_memory.c %D%/ucp/ucp_message.h \
	%D%/ucp/ucp_message.c %D%/ucp/ucp_objects.h %D%/ucp/ucp_op.h %D%/ucp/ucp_op.c %D%/ucp/ucp_peer.h \
	%D%/ucp/ucp_peer.c \
	%D%/ucp/ucp_protocol_rma.c %D%/ucp/ucp_settings.h %D%/ucp/ucp_settings.c %D%/ucp/ucp_shared.h %D%/ucp/ucp_shared.c \
	%D%/ucp/ucp_link_signals.c %D%/ucp/ucp_protocol.h \
	%D%/ucp/ucp_transport.h %D%/ucp/ucp_transport.c %D%/ucp/ucp_transport_unranked.c \
	%D%/ucp/ucp_heap_wire.c %D%/ucp/ucp_heap_direct.c \
	%D%/pmix/pmix_api.h %D%/pmix/pmix_api.c %D%/pmix/pmix_boot.h %D%/pmix/pmix_boot.c %D%/pmix/pmix_call.h \
	%D%/pmix/pmix_call.c %D%/pmix/pmix_client.h %D%/pmix/pmix_client.c \
	%D%/pmix/pmix_client_exchange.c %D%/pmix/pmix_life.h %D%/pmix/pmix_life.c \
	%D%/pmix/pmix_names.h %D%/pmix/pmix_names.c \
	%D%/cuda/cuda_device.h %D%/cuda/cuda_device.c %D%/cuda/cuda_driver.h %D%/cuda/cuda_driver.c \
	%D%/cuda/cuda_memory.h %D%/cuda/cuda_memory.c %D%/cuda/cuda_objects.h \
	%D%/cuda/cuda_device_pointers.c %D%/cuda/cuda_work.h %D%/cuda/cuda_work.c \
	%D%/util/cache.h %D%/util/cache.c %D%/util/config.h %D%/util/config.c %D%/util/config_defs.h %D%/util/cpu.h \
	%D%/util/cpu.c %D%/util/dtype.c %D%/util/error.h %D%/util/error.c \
	%D%/util/hash.h %D%/util/host.h %D%/util/host.c %D%/util/interfaces.h %D%/util/interfaces.c %D%/util/process.h \
	%D%/util/process.c %D%/util/log.h %D%/util/log.c %D%/util/mapping.h %D%/util/mapping.c %D%/util/backoff.h \
	%D%/util/backoff.c %D%/util/room.h %D%/util/room.c \
	%D%/util/team.h %D%/util/team.c %D%/util/trace.h %D%/util/trace.c %D%/util/trace_file.h %D%/util/text.h \
	%D%/util/text.c %D%/util/watch.h %D%/util/watch.c
libxep_all_la_CPPFLAGS = $(library_cppflags) $(UCX_CFLAGS) $(PMIX_CFLAGS) -DXEP_PLUGIN_DIR='"$(pkglibdir)"'
libxep_all_la_LIBADD = libxep_cost.la $(UCX_LIBS) $(NUMA_LIBS)

lib_LTLIBRARIES = libxep.la
libxep_la_SOURCES =
libxep_la_LIBADD = libxep_all.la
libxep_la_LDFLAGS = -version-info $(XEP_LIBRARY_VERSION) -no-undefined
libxep_la_DEPENDENCIES = libxep_all.la %D%/xep.map
if HAVE_VERSION_SCRIPT
libxep_la_LDFLAGS += -Wl,--version-script=$(srcdir)/%D%/xep.map
endif
EXTRA_DIST += %D%/xep.map
