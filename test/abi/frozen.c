/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The layout of every public struct, frozen: programs and modes are compiled with these numbers.
 * Structs with a size grow at their end only; then the new size and fields are added here. A change of
 * one of plugin.h or wire.h is also a new XEP_PLUGIN_ABI. Checked by the compiler, where pointers have 64 bits.
 */
#include <stdint.h>
#include <stdio.h>

/* a field put into a hole would not change the size, which is how versions are told: so there are no holes */
#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
#include <xep/cuda.h>
#include <xep/elastic.h>
#include <xep/experts.h>
#include <xep/inspect.h>
#include <xep/launch.h>
#include <xep/pieces.h>
#include <xep/serve.h>
#include <xep/xep.h>
#pragma GCC diagnostic pop

#include <xep/plugin.h>

#define SIZE(_struct, _bytes) _Static_assert(sizeof(_struct) == (_bytes), #_struct " has another size than " #_bytes)
#define AT(_struct, _field, _offset) \
    _Static_assert(offsetof(_struct, _field) == (_offset), #_struct "." #_field " is elsewhere than " #_offset)

#if UINTPTR_MAX == UINT64_MAX

SIZE(xep_library_info_t, 72);
AT(xep_library_info_t, size, 0);
AT(xep_library_info_t, version, 8);
AT(xep_library_info_t, build, 16);
AT(xep_library_info_t, library_path, 24);
AT(xep_library_info_t, ucx_version, 32);
AT(xep_library_info_t, ucx_path, 40);
AT(xep_library_info_t, pmix_version, 48);
AT(xep_library_info_t, pmix_path, 56);
AT(xep_library_info_t, simd, 64);

SIZE(xep_mode_info_t, 40);
AT(xep_mode_info_t, size, 0);
AT(xep_mode_info_t, memory, 8);
AT(xep_mode_info_t, features, 12);
AT(xep_mode_info_t, casts, 16);
AT(xep_mode_info_t, combine_casts, 20);
AT(xep_mode_info_t, arrangements, 24);
AT(xep_mode_info_t, dtypes, 28);
AT(xep_mode_info_t, cast_dtypes, 32);
AT(xep_mode_info_t, combine_dtypes, 36);

SIZE(xep_group_params_t, 56);
AT(xep_group_params_t, size, 0);
AT(xep_group_params_t, allgather, 8);
AT(xep_group_params_t, allgather_ctx, 16);
AT(xep_group_params_t, rank, 24);
AT(xep_group_params_t, nranks, 28);
AT(xep_group_params_t, timeout_ms, 32);
AT(xep_group_params_t, reserved, 36);
AT(xep_group_params_t, interrupted, 40);
AT(xep_group_params_t, interrupted_ctx, 48);

SIZE(xep_group_info_t, 32);
AT(xep_group_info_t, size, 0);
AT(xep_group_info_t, rank, 8);
AT(xep_group_info_t, nranks, 12);
AT(xep_group_info_t, node, 16);
AT(xep_group_info_t, nnodes, 20);
AT(xep_group_info_t, boot, 24);

SIZE(xep_shrink_args_t, 24);
AT(xep_shrink_args_t, size, 0);
AT(xep_shrink_args_t, timeout_ms, 8);
AT(xep_shrink_args_t, least, 12);
AT(xep_shrink_args_t, origins, 16);
SIZE(xep_grow_args_t, 48);
AT(xep_grow_args_t, size, 0);
AT(xep_grow_args_t, joiners, 8);
AT(xep_grow_args_t, timeout_ms, 12);
AT(xep_grow_args_t, path, 16);
AT(xep_grow_args_t, publish, 24);
AT(xep_grow_args_t, publish_ctx, 32);
AT(xep_grow_args_t, flags, 40);
AT(xep_grow_args_t, reserved, 44);
SIZE(xep_join_params_t, 56);
AT(xep_join_params_t, size, 0);
AT(xep_join_params_t, path, 8);
AT(xep_join_params_t, lookup, 16);
AT(xep_join_params_t, lookup_ctx, 24);
AT(xep_join_params_t, timeout_ms, 32);
AT(xep_join_params_t, reserved, 36);
AT(xep_join_params_t, interrupted, 40);
AT(xep_join_params_t, interrupted_ctx, 48);
SIZE(xep_mask_t, 16);
AT(xep_mask_t, rank, 0);
AT(xep_mask_t, reason, 4);
AT(xep_mask_t, since_ns, 8);

SIZE(xep_peer_info_t, 24);
AT(xep_peer_info_t, size, 0);
AT(xep_peer_info_t, node, 8);
AT(xep_peer_info_t, mapped, 12);
AT(xep_peer_info_t, transport, 16);

SIZE(xep_layout_args_t, 80);
AT(xep_layout_args_t, size, 0);
AT(xep_layout_args_t, tokens, 8);
AT(xep_layout_args_t, topk, 16);
AT(xep_layout_args_t, experts, 20);
AT(xep_layout_args_t, nranks, 24);
AT(xep_layout_args_t, ranks_per_node, 28);
AT(xep_layout_args_t, topk_idx, 32);
AT(xep_layout_args_t, topk_idx_stride, 40);
AT(xep_layout_args_t, topk_idx_dtype, 48);
AT(xep_layout_args_t, reserved, 52);
AT(xep_layout_args_t, buffer, 56);
AT(xep_layout_args_t, stream, 64);
AT(xep_layout_args_t, owners, 72);

SIZE(xep_layout_t, 40);
AT(xep_layout_t, size, 0);
AT(xep_layout_t, tokens_per_rank, 8);
AT(xep_layout_t, tokens_per_node, 16);
AT(xep_layout_t, tokens_per_expert, 24);
AT(xep_layout_t, token_in_rank, 32);

SIZE(xep_buffer_params_t, 144);
AT(xep_buffer_params_t, size, 0);
AT(xep_buffer_params_t, mode, 8);
AT(xep_buffer_params_t, experts, 16);
AT(xep_buffer_params_t, topk, 20);
AT(xep_buffer_params_t, hidden, 24);
AT(xep_buffer_params_t, scales, 28);
AT(xep_buffer_params_t, tokens, 32);
AT(xep_buffer_params_t, recv_rows, 40);
AT(xep_buffer_params_t, dtype, 48);
AT(xep_buffer_params_t, combine_dtype, 52);
AT(xep_buffer_params_t, slots, 56);
AT(xep_buffer_params_t, threads, 60);
AT(xep_buffer_params_t, multiprocessors, 64);
AT(xep_buffer_params_t, timeout_ms, 68);
AT(xep_buffer_params_t, memory, 72);
AT(xep_buffer_params_t, on_failure, 76);
AT(xep_buffer_params_t, flags, 80);
AT(xep_buffer_params_t, path, 84);
AT(xep_buffer_params_t, node_sums, 88);
AT(xep_buffer_params_t, reserved, 92);
AT(xep_buffer_params_t, pass_rows, 96);
AT(xep_buffer_params_t, owners, 104);
AT(xep_buffer_params_t, replicas, 112);
AT(xep_buffer_params_t, nreplicas, 120);
AT(xep_buffer_params_t, balance, 124);
AT(xep_buffer_params_t, plan, 128);
AT(xep_buffer_params_t, plan_ctx, 136);

SIZE(xep_replica_t, 8);
AT(xep_replica_t, expert, 0);
AT(xep_replica_t, rank, 4);

SIZE(xep_plan_t, 56);
AT(xep_plan_t, size, 0);
AT(xep_plan_t, experts, 8);
AT(xep_plan_t, nranks, 12);
AT(xep_plan_t, counts, 16);
AT(xep_plan_t, begin, 24);
AT(xep_plan_t, rank, 32);
AT(xep_plan_t, rows, 40);
AT(xep_plan_t, out, 48);

SIZE(xep_loads_t, 40);
AT(xep_loads_t, size, 0);
AT(xep_loads_t, dispatches, 8);
AT(xep_loads_t, selections, 16);
AT(xep_loads_t, most_before, 24);
AT(xep_loads_t, most_after, 32);

SIZE(xep_counters_t, 88);
AT(xep_counters_t, size, 0);
AT(xep_counters_t, operations, 8);
AT(xep_counters_t, errors, 16);
AT(xep_counters_t, peer_errors, 24);
AT(xep_counters_t, rows, 32);
AT(xep_counters_t, bytes, 40);
AT(xep_counters_t, waits, 48);
AT(xep_counters_t, wait_ns, 56);
AT(xep_counters_t, wire_bytes, 64);
AT(xep_counters_t, ranks_out, 72);
AT(xep_counters_t, age_ns, 80);

SIZE(xep_weights_params_t, 48);
AT(xep_weights_params_t, size, 0);
AT(xep_weights_params_t, experts, 8);
AT(xep_weights_params_t, copies, 12);
AT(xep_weights_params_t, bytes, 16);
AT(xep_weights_params_t, owners, 24);
AT(xep_weights_params_t, elements, 32);
AT(xep_weights_params_t, gradients, 40);
AT(xep_weights_params_t, timeout_ms, 44);

SIZE(xep_weights_reduce_args_t, 40);
AT(xep_weights_reduce_args_t, size, 0);
AT(xep_weights_reduce_args_t, count, 8);
AT(xep_weights_reduce_args_t, reserved, 12);
AT(xep_weights_reduce_args_t, experts, 16);
AT(xep_weights_reduce_args_t, x, 24);
AT(xep_weights_reduce_args_t, out, 32);

SIZE(xep_buffer_size_t, 40);
AT(xep_buffer_size_t, size, 0);
AT(xep_buffer_size_t, bytes, 8);
AT(xep_buffer_size_t, recv_rows, 16);
AT(xep_buffer_size_t, node_bytes, 24);
AT(xep_buffer_size_t, device_bytes, 32);

SIZE(xep_buffer_info_t, 136);
AT(xep_buffer_info_t, size, 0);
AT(xep_buffer_info_t, mode, 8);
AT(xep_buffer_info_t, bytes, 16);
AT(xep_buffer_info_t, recv_rows, 24);
AT(xep_buffer_info_t, slots, 32);
AT(xep_buffer_info_t, free_slots, 36);
AT(xep_buffer_info_t, threads, 40);
AT(xep_buffer_info_t, mapped_peers, 44);
AT(xep_buffer_info_t, operations, 48);
AT(xep_buffer_info_t, memory, 56);
AT(xep_buffer_info_t, device, 60);
AT(xep_buffer_info_t, experts, 64);
AT(xep_buffer_info_t, topk, 68);
AT(xep_buffer_info_t, hidden, 72);
AT(xep_buffer_info_t, scales, 76);
AT(xep_buffer_info_t, tokens, 80);
AT(xep_buffer_info_t, dtype, 88);
AT(xep_buffer_info_t, combine_dtype, 92);
AT(xep_buffer_info_t, on_failure, 96);
AT(xep_buffer_info_t, timeout_ms, 100);
AT(xep_buffer_info_t, path, 104);
AT(xep_buffer_info_t, node_sums, 108);
AT(xep_buffer_info_t, pass_rows, 112);
AT(xep_buffer_info_t, flags, 120);
AT(xep_buffer_info_t, local_experts, 124);
AT(xep_buffer_info_t, multiprocessors, 128);
AT(xep_buffer_info_t, reserved, 132);

SIZE(xep_waits_t, 40);
AT(xep_waits_t, size, 0);
AT(xep_waits_t, operations, 8);
AT(xep_waits_t, count, 16);
AT(xep_waits_t, sum_ns, 24);
AT(xep_waits_t, max_ns, 32);

SIZE(xep_dispatch_args_t, 208);
AT(xep_dispatch_args_t, size, 0);
AT(xep_dispatch_args_t, tokens, 8);
AT(xep_dispatch_args_t, x, 16);
AT(xep_dispatch_args_t, x_stride, 24);
AT(xep_dispatch_args_t, dtype, 32);
AT(xep_dispatch_args_t, hidden, 36);
AT(xep_dispatch_args_t, topk, 40);
AT(xep_dispatch_args_t, topk_idx_dtype, 44);
AT(xep_dispatch_args_t, topk_idx, 48);
AT(xep_dispatch_args_t, topk_idx_stride, 56);
AT(xep_dispatch_args_t, topk_weights, 64);
AT(xep_dispatch_args_t, topk_weights_stride, 72);
AT(xep_dispatch_args_t, scales, 80);
AT(xep_dispatch_args_t, nscales, 88);
AT(xep_dispatch_args_t, scales_dtype, 92);
AT(xep_dispatch_args_t, scales_token_stride, 96);
AT(xep_dispatch_args_t, scales_stride, 104);
AT(xep_dispatch_args_t, expert_alignment, 112);
AT(xep_dispatch_args_t, timeout_ms, 116);
AT(xep_dispatch_args_t, capacity, 120);
AT(xep_dispatch_args_t, cached, 128);
AT(xep_dispatch_args_t, after, 136);
AT(xep_dispatch_args_t, recv_rows_p, 144);
AT(xep_dispatch_args_t, quant, 152);
AT(xep_dispatch_args_t, arrangement, 156);
AT(xep_dispatch_args_t, flags, 160);
AT(xep_dispatch_args_t, quant_scale, 164);
AT(xep_dispatch_args_t, expert_stats, 168);
AT(xep_dispatch_args_t, wait_ns, 176);
AT(xep_dispatch_args_t, stream, 184);
AT(xep_dispatch_args_t, payloads, 192);
AT(xep_dispatch_args_t, npayloads, 200);
AT(xep_dispatch_args_t, reserved, 204);

SIZE(xep_recv_t, 256);
AT(xep_recv_t, size, 0);
AT(xep_recv_t, arrangement, 8);
AT(xep_recv_t, quant, 12);
AT(xep_recv_t, rows, 16);
AT(xep_recv_t, capacity, 24);
AT(xep_recv_t, x, 32);
AT(xep_recv_t, x_stride, 40);
AT(xep_recv_t, dtype, 48);
AT(xep_recv_t, hidden, 52);
AT(xep_recv_t, topk, 56);
AT(xep_recv_t, topk_idx_dtype, 60);
AT(xep_recv_t, topk_idx, 64);
AT(xep_recv_t, topk_weights, 72);
AT(xep_recv_t, scales, 80);
AT(xep_recv_t, nscales, 88);
AT(xep_recv_t, scales_dtype, 92);
AT(xep_recv_t, src_token, 96);
AT(xep_recv_t, src_begin, 104);
AT(xep_recv_t, rank_rows, 112);
AT(xep_recv_t, first_expert, 120);
AT(xep_recv_t, local_experts, 124);
AT(xep_recv_t, expert_rows, 128);
AT(xep_recv_t, scales_token_stride, 136);
AT(xep_recv_t, scales_stride, 144);
AT(xep_recv_t, expert_begin, 152);
AT(xep_recv_t, expert_count, 160);
AT(xep_recv_t, pair_begin, 168);
AT(xep_recv_t, pair_count, 176);
AT(xep_recv_t, out, 184);
AT(xep_recv_t, row, 192);
AT(xep_recv_t, pieces, 200);
AT(xep_recv_t, piece, 208);
AT(xep_recv_t, all_rows, 216);
AT(xep_recv_t, first_row, 224);
AT(xep_recv_t, experts, 232);
AT(xep_recv_t, payloads, 240);
AT(xep_recv_t, npayloads, 248);
AT(xep_recv_t, reserved, 252);

SIZE(xep_payload_t, 24);
AT(xep_payload_t, data, 0);
AT(xep_payload_t, stride, 8);
AT(xep_payload_t, bytes, 16);
AT(xep_payload_t, alignment, 20);

SIZE(xep_next_args_t, 64);
AT(xep_next_args_t, size, 0);
AT(xep_next_args_t, x, 8);
AT(xep_next_args_t, x_stride, 16);
AT(xep_next_args_t, dtype, 24);
AT(xep_next_args_t, hidden, 28);
AT(xep_next_args_t, topk_weights, 32);
AT(xep_next_args_t, topk_weights_stride, 40);
AT(xep_next_args_t, timeout_ms, 48);
AT(xep_next_args_t, reserved, 52);
AT(xep_next_args_t, wait_ns, 56);

SIZE(xep_expand_args_t, 104);
AT(xep_expand_args_t, size, 0);
AT(xep_expand_args_t, capacity, 8);
AT(xep_expand_args_t, expert_alignment, 16);
AT(xep_expand_args_t, flags, 20);
AT(xep_expand_args_t, slots, 24);
AT(xep_expand_args_t, expert_begin, 32);
AT(xep_expand_args_t, expert_count, 40);
AT(xep_expand_args_t, x, 48);
AT(xep_expand_args_t, x_stride, 56);
AT(xep_expand_args_t, topk_weights, 64);
AT(xep_expand_args_t, scales, 72);
AT(xep_expand_args_t, scales_token_stride, 80);
AT(xep_expand_args_t, scales_stride, 88);
AT(xep_expand_args_t, stream, 96);

SIZE(xep_reduce_args_t, 88);
AT(xep_reduce_args_t, size, 0);
AT(xep_reduce_args_t, slots, 8);
AT(xep_reduce_args_t, x, 16);
AT(xep_reduce_args_t, x_stride, 24);
AT(xep_reduce_args_t, dtype, 32);
AT(xep_reduce_args_t, hidden, 36);
AT(xep_reduce_args_t, out, 40);
AT(xep_reduce_args_t, out_stride, 48);
AT(xep_reduce_args_t, out_dtype, 56);
AT(xep_reduce_args_t, reserved, 60);
AT(xep_reduce_args_t, topk_weights, 64);
AT(xep_reduce_args_t, out_weights, 72);
AT(xep_reduce_args_t, stream, 80);

SIZE(xep_combine_args_t, 184);
AT(xep_combine_args_t, size, 0);
AT(xep_combine_args_t, x, 8);
AT(xep_combine_args_t, x_stride, 16);
AT(xep_combine_args_t, dtype, 24);
AT(xep_combine_args_t, hidden, 28);
AT(xep_combine_args_t, topk_weights, 32);
AT(xep_combine_args_t, topk_weights_stride, 40);
AT(xep_combine_args_t, bias, 48);
AT(xep_combine_args_t, bias_stride, 64);
AT(xep_combine_args_t, out, 80);
AT(xep_combine_args_t, out_stride, 88);
AT(xep_combine_args_t, out_weights, 96);
AT(xep_combine_args_t, out_weights_stride, 104);
AT(xep_combine_args_t, after, 112);
AT(xep_combine_args_t, timeout_ms, 120);
AT(xep_combine_args_t, flags, 124);
AT(xep_combine_args_t, weights, 128);
AT(xep_combine_args_t, weights_stride, 136);
AT(xep_combine_args_t, wait_ns, 144);
AT(xep_combine_args_t, stream, 152);
AT(xep_combine_args_t, missing, 160);
AT(xep_combine_args_t, missing_stride, 168);
AT(xep_combine_args_t, quant, 176);
AT(xep_combine_args_t, quant_scale, 180);

SIZE(xep_shape_t, 160);
AT(xep_shape_t, rank, 0);
AT(xep_shape_t, nranks, 4);
AT(xep_shape_t, nodes, 8);
AT(xep_shape_t, node, 16);
AT(xep_shape_t, place, 24);
AT(xep_shape_t, node_ranks, 32);
AT(xep_shape_t, experts, 40);
AT(xep_shape_t, first_expert, 48);
AT(xep_shape_t, expert, 56);
AT(xep_shape_t, local_experts, 64);
AT(xep_shape_t, most_experts, 68);
AT(xep_shape_t, topk, 72);
AT(xep_shape_t, hidden, 76);
AT(xep_shape_t, scales, 80);
AT(xep_shape_t, elem_bytes, 84);
AT(xep_shape_t, combine_elem_bytes, 88);
AT(xep_shape_t, slots, 92);
AT(xep_shape_t, tokens, 96);
AT(xep_shape_t, sends, 104);
AT(xep_shape_t, recv_rows, 112);
AT(xep_shape_t, sends_in_place, 120);
AT(xep_shape_t, by_nodes, 124);
AT(xep_shape_t, upstreams, 128);
AT(xep_shape_t, feed_rows, 136);
AT(xep_shape_t, wide_sums, 144);
AT(xep_shape_t, in_pieces, 148);
AT(xep_shape_t, sums_by_selection, 152);

SIZE(xep_traffic_t, 56);
AT(xep_traffic_t, by_nodes, 0);
AT(xep_traffic_t, by_selection, 4);
AT(xep_traffic_t, pulled, 8);
AT(xep_traffic_t, messages_by_nodes, 12);
AT(xep_traffic_t, messages, 16);
AT(xep_traffic_t, rounds, 20);
AT(xep_traffic_t, message_bytes, 24);
AT(xep_traffic_t, row_bytes, 32);
AT(xep_traffic_t, sent_bytes, 40);
AT(xep_traffic_t, pass_rows, 48);

SIZE(xep_region_t, 32);
AT(xep_region_t, bytes, 0);
AT(xep_region_t, alignment, 8);
AT(xep_region_t, memory, 12);
AT(xep_region_t, offset, 16);
AT(xep_region_t, base, 24);

SIZE(xep_late_t, 48);
AT(xep_late_t, count, 0);
AT(xep_late_t, ranks, 8);
AT(xep_late_t, since_ns, 16);
AT(xep_late_t, wait_ns, 24);
AT(xep_late_t, what, 32);
AT(xep_late_t, opens, 40);

SIZE(xep_ranks_t, 16);
AT(xep_ranks_t, count, 0);
AT(xep_ranks_t, self, 4);
AT(xep_ranks_t, rank, 8);

SIZE(xep_op_t, 176);
AT(xep_op_t, kind, 0);
AT(xep_op_t, slot, 4);
AT(xep_op_t, cached_slot, 8);
AT(xep_op_t, refused, 12);
AT(xep_op_t, epoch, 16);
AT(xep_op_t, turn, 24);
AT(xep_op_t, dispatch, 32);
AT(xep_op_t, combine, 40);
AT(xep_op_t, timeout_ms, 48);
AT(xep_op_t, waits, 52);
AT(xep_op_t, recv, 56);
AT(xep_op_t, state, 64);
AT(xep_op_t, late, 72);
AT(xep_op_t, with, 120);
AT(xep_op_t, heard, 136);
AT(xep_op_t, out, 152);
AT(xep_op_t, is_ruled, 160);
AT(xep_op_t, decision, 164);
AT(xep_op_t, coming, 168);

SIZE(xep_env_t, 288);
AT(xep_env_t, size, 0);
AT(xep_env_t, shape, 8);
AT(xep_env_t, heap, 16);
AT(xep_env_t, heap_bytes, 24);
AT(xep_env_t, regions, 32);
AT(xep_env_t, wire, 128);
AT(xep_env_t, device, 136);
AT(xep_env_t, threads, 144);
AT(xep_env_t, multiprocessors, 148);
AT(xep_env_t, simd, 152);
AT(xep_env_t, stream_bytes, 160);
AT(xep_env_t, parallel, 168);
AT(xep_env_t, prefault, 176);
AT(xep_env_t, now_ns, 184);
AT(xep_env_t, fail, 192);
AT(xep_env_t, log, 200);
AT(xep_env_t, tracing, 208);
AT(xep_env_t, span, 216);
AT(xep_env_t, checks_rows, 224);
AT(xep_env_t, out, 232);
AT(xep_env_t, is_told, 240);
AT(xep_env_t, has_ended, 248);
AT(xep_env_t, leave_out, 256);
AT(xep_env_t, wake, 264);
AT(xep_env_t, rows_came, 272);
AT(xep_env_t, part_bytes, 280);

SIZE(xep_mask_ops_t, 32);
AT(xep_mask_ops_t, holds, 0);
AT(xep_mask_ops_t, fetch, 8);
AT(xep_mask_ops_t, verdict, 16);
AT(xep_mask_ops_t, reads, 24);

SIZE(xep_place_ops_t, 16);
AT(xep_place_ops_t, memory, 0);
AT(xep_place_ops_t, release, 8);

SIZE(xep_plugin_t, 192);
AT(xep_plugin_t, abi, 0);
AT(xep_plugin_t, size, 4);
AT(xep_plugin_t, env_size, 8);
AT(xep_plugin_t, shape_size, 12);
AT(xep_plugin_t, op_struct_size, 16);
AT(xep_plugin_t, wire_ops_size, 20);
AT(xep_plugin_t, device_ops_size, 24);
AT(xep_plugin_t, state_bytes, 28);
AT(xep_plugin_t, name, 32);
AT(xep_plugin_t, brief, 40);
AT(xep_plugin_t, can, 48);
AT(xep_plugin_t, casts, 52);
AT(xep_plugin_t, combine_casts, 56);
AT(xep_plugin_t, arrangements, 60);
AT(xep_plugin_t, heap_size, 64);
AT(xep_plugin_t, open, 72);
AT(xep_plugin_t, close, 80);
AT(xep_plugin_t, dispatch, 88);
AT(xep_plugin_t, combine, 96);
AT(xep_plugin_t, progress, 104);
AT(xep_plugin_t, input, 112);
AT(xep_plugin_t, explain, 120);
AT(xep_plugin_t, masks, 128);
AT(xep_plugin_t, place, 136);
AT(xep_plugin_t, layout, 144);
AT(xep_plugin_t, traffic, 152);
AT(xep_plugin_t, begins_early, 160);
AT(xep_plugin_t, next, 168);
AT(xep_plugin_t, expand, 176);
AT(xep_plugin_t, reduce, 184);

SIZE(xep_wire_ops_t, 80);
AT(xep_wire_ops_t, size, 0);
AT(xep_wire_ops_t, map, 8);
AT(xep_wire_ops_t, put, 16);
AT(xep_wire_ops_t, put_signal, 24);
AT(xep_wire_ops_t, signal_later, 32);
AT(xep_wire_ops_t, get, 40);
AT(xep_wire_ops_t, flush, 48);
AT(xep_wire_ops_t, mark, 56);
AT(xep_wire_ops_t, flush_to, 64);
AT(xep_wire_ops_t, progress, 72);

SIZE(xep_launch_t, 40);
AT(xep_launch_t, kernel, 0);
AT(xep_launch_t, blocks, 8);
AT(xep_launch_t, threads, 12);
AT(xep_launch_t, shared_bytes, 16);
AT(xep_launch_t, follows, 20);
AT(xep_launch_t, stream, 24);
AT(xep_launch_t, args, 32);

SIZE(xep_device_ops_t, 152);
AT(xep_device_ops_t, size, 0);
AT(xep_device_ops_t, map, 8);
AT(xep_device_ops_t, allocate, 16);
AT(xep_device_ops_t, release, 24);
AT(xep_device_ops_t, load, 32);
AT(xep_device_ops_t, find, 40);
AT(xep_device_ops_t, unload, 48);
AT(xep_device_ops_t, launch, 56);
AT(xep_device_ops_t, copy, 64);
AT(xep_device_ops_t, fill, 72);
AT(xep_device_ops_t, after_mark, 80);
AT(xep_device_ops_t, mark, 88);
AT(xep_device_ops_t, branch, 96);
AT(xep_device_ops_t, join, 104);
AT(xep_device_ops_t, check_stream, 112);
AT(xep_device_ops_t, check, 120);
AT(xep_device_ops_t, is_captured, 128);
AT(xep_device_ops_t, sync, 136);
AT(xep_device_ops_t, check_host, 144);

SIZE(xep_serve_call_t, 88);
AT(xep_serve_call_t, size, 0);
AT(xep_serve_call_t, buffer, 8);
AT(xep_serve_call_t, handle, 16);
AT(xep_serve_call_t, recv, 24);
AT(xep_serve_call_t, step, 32);
AT(xep_serve_call_t, dispatch, 40);
AT(xep_serve_call_t, out, 48);
AT(xep_serve_call_t, out_stride, 56);
AT(xep_serve_call_t, dtype, 64);
AT(xep_serve_call_t, expert, 68);
AT(xep_serve_call_t, topk_weights, 72);
AT(xep_serve_call_t, topk_weights_stride, 80);

SIZE(xep_serve_args_t, 40);
AT(xep_serve_args_t, size, 0);
AT(xep_serve_args_t, buffers, 8);
AT(xep_serve_args_t, count, 16);
AT(xep_serve_args_t, timeout_ms, 20);
AT(xep_serve_args_t, fn, 24);
AT(xep_serve_args_t, arg, 32);

SIZE(xep_device_t, 40);
AT(xep_device_t, ops, 0);
AT(xep_device_t, multiprocessors, 8);
AT(xep_device_t, shared_bytes, 12);
AT(xep_device_t, stop, 16);
AT(xep_device_t, gone, 24);
AT(xep_device_t, left, 32);

SIZE(xep_wire_t, 8);
AT(xep_wire_t, ops, 0);

SIZE(xep_status_t, 4);
SIZE(xep_dtype_t, 4);
SIZE(xep_quant_t, 4);
SIZE(xep_rows_t, 4);
SIZE(xep_op_kind_t, 4);
SIZE(xep_log_level_t, 4);
SIZE(xep_memory_t, 4);
SIZE(xep_on_failure_t, 4);
SIZE(xep_path_t, 4);
SIZE(xep_node_sums_t, 4);
SIZE(xep_out_reason_t, 4);
SIZE(xep_simd_t, 4);
SIZE(xep_opens_t, 4);
SIZE(xep_begins_t, 4);

#endif

_Static_assert(XEP_PLUGIN_ABI == 19, "XEP_PLUGIN_ABI changed: so did something above");
_Static_assert(XEP_BF16 == 1 && XEP_FP16 == 2 && XEP_FP32 == 3 && XEP_E4M3 == 4 && XEP_E5M2 == 5 && XEP_U8 == 6 &&
                   XEP_INT32 == 7 && XEP_INT64 == 8 && XEP_FP64 == 9,
               "a dtype has another value");
_Static_assert(XEP_OK == 0 && XEP_INPROGRESS == 1 && XEP_ERR_INVALID == -1 && XEP_ERR_NO_MEMORY == -2 &&
                   XEP_ERR_UNSUPPORTED == -3 && XEP_ERR_MISMATCH == -4 && XEP_ERR_BUSY == -5 &&
                   XEP_ERR_OVERFLOW == -6 && XEP_ERR_TIMEOUT == -7 && XEP_ERR_PEER == -8 && XEP_ERR_BOOT == -9 &&
                   XEP_ERR_TRANSPORT == -10 && XEP_ERR_PLUGIN == -11 && XEP_ERR_PROTOCOL == -12 &&
                   XEP_ERR_ABORTED == -13 && XEP_ERR_BROKEN == -14,
               "a status has another value");
_Static_assert(XEP_LOG_ERROR == 0 && XEP_LOG_WARN == 1 && XEP_LOG_INFO == 2 && XEP_LOG_DEBUG == 3,
               "a log level has another value");
_Static_assert(XEP_OP_DISPATCH == 0 && XEP_OP_COMBINE == 1 && XEP_OP_NEXT == 2, "an operation has another value");
_Static_assert(XEP_MEMORY_HOST == 0 && XEP_MEMORY_CUDA == 1, "a kind of memory has another value");
_Static_assert(XEP_ON_FAILURE_FAIL == 0 && XEP_ON_FAILURE_MASK == 1, "what is done on a failure has another value");
_Static_assert(XEP_OUT_DIED == 1 && XEP_OUT_LATE == 2 && XEP_OUT_ASKED == 3, "a reason has another value");
_Static_assert(XEP_ROWS_BY_RANK == 1, "an arrangement has another value");
_Static_assert(XEP_SIMD_SCALAR == 0 && XEP_SIMD_AVX2 == 1 && XEP_SIMD_AVX512 == 2 && XEP_SIMD_AVX512VBMI == 3 &&
                   XEP_SIMD_NEON == 1,
               "an instruction set has another value");

int main(void)
{
    puts("1..1\nok 1 - the layouts this was compiled with");
    return 0;
}
