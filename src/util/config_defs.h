/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Every configuration variable, one line each; the environment variable is XEP_NAME. A table: no include guard.
 *   VALUE(field, NAME, type, default, help)   type: text, path, folders (that exist), bytes, chosen (bytes or auto),
 *                                             count, positive (a count from 1 on), millis (a bare number: seconds)
 *   CHOICE(field, NAME, default, help)        one of the names in <field>_choices, config.c
 */
CHOICE(boot, "BOOT", "auto",
       "how ranks find one another: auto (callback, pmix, single in that order), callback, pmix, single")
VALUE(mode, "MODE", text, "normal", "plugin of a buffer whose params name none")
VALUE(plugin_path, "PLUGIN_PATH", folders, "",
      "folders with plugins, colon-separated, looked in before the installed ones; not when setuid")
CHOICE(map, "MAP", "auto",
       "auto: load and store in the memory of peers where UCX can map it; never: UCX moves every byte")
CHOICE(direct, "DIRECT", "no",
       "rows in device memory where no rank maps another: yes: mode normal has UCX put them from device to device, "
       "where it knows CUDA; no: they go through host memory, as all other rows do")
CHOICE(path, "PATH", "auto",
       "how rows reach ranks of other nodes: flat (once to each rank), nodes (once to each node, and on from there), "
       "auto (what takes less time for an even load)")
VALUE(net_rate, "NET_RATE", bytes, "1g",
      "bytes a second that a rank gets through the network, for the choice of XEP_PATH=auto")
VALUE(memory_rate, "MEMORY_RATE", bytes, "4g", "bytes a second that a rank copies, likewise")
CHOICE(put, "PUT", "auto",
       "bytes to ranks that are not mapped: rma (a put each), am (packed eager messages), "
       "auto (chosen by transport and version of UCX)")
VALUE(inflight, "INFLIGHT", bytes, "8m", "most bytes on their way to ranks that are not mapped, before a sender waits")
VALUE(part, "PART", bytes, "256k",
      "mode ll, by nodes: a rank tells of its rows each time so many bytes are on their way, and they are copied to "
      "their places while the rest travels")
VALUE(timeout, "TIMEOUT", millis, "120s",
      "deadline of a wait where the call gives none: seconds, or as 500ms, 5s, 2m; inf: none")
VALUE(heartbeat, "HEARTBEAT", millis, "2s",
      "how often ranks of different hosts tell one another that they live; one that says nothing for five times as "
      "long is gone; inf: not at all")
CHOICE(liveness, "LIVENESS", "process",
       "how ranks of one host know that one has died: process (the kernel is asked for it by its number), heartbeat "
       "(as ranks of different hosts do)")
VALUE(threads, "THREADS", positive, "1", "threads of a rank that copy and reduce")
CHOICE(progress, "PROGRESS", "call", "call: progress is made inside calls; thread: also by a thread of the group")
CHOICE(simd, "SIMD", "auto",
       "kernels: auto (the widest the CPU has), avx512vbmi, avx512, avx2, scalar, on aarch64 neon, scalar; one it "
       "does not have gives a warning and the widest it has")
VALUE(stream, "STREAMING", chosen, "auto",
      "a dispatch that writes at least this many bytes, or a combine that loads and writes as many, uses streaming "
      "stores; 0: every operation; inf: none; auto: this rank's share of the last cache, at least 768k")
VALUE(prefault, "PREFAULT", bytes, "16g",
      "map what an even load needs at create, of later slots at their first use, up to this many bytes for a rank")
CHOICE(room, "ROOM", "host",
       "what must fit into free memory before a buffer is made: host (the heaps of all ranks of a host together), rank "
       "(each by itself, as an even load never touches most pages of a large one)")
CHOICE(numa, "NUMA", "yes", "place shared memory on the NUMA node the rank runs on: yes, no")
VALUE(node_ranks, "NODE_RANKS", count, "0",
      "for tests: so many consecutive ranks form a node, whatever can be mapped; 0: find out")
VALUE(trace, "TRACE", path, "",
      "file for a trace of all operations: FILE.RANK, merged by xep_run or xep_trace merge FILE; not "
      "when setuid")
VALUE(trace_bytes, "TRACE_BYTES", bytes, "4m",
      "memory of a thread for its trace, 64k to 1g; the oldest events go first")
VALUE(record, "RECORD", path, "",
      "file for the routing of one dispatch: FILE.RANK, for xep_perf --routing file:; not when setuid")
VALUE(record_at, "RECORD_AT", positive, "1", "the dispatch whose routing is written: 1 is the first of a group")
CHOICE(explain, "EXPLAIN", "no",
       "signal on which a process says what it waits for, for whom and since when: sigusr1, sigusr2, no")
CHOICE(log, "LOG", "warn", "least level logged: error, warn, info, debug")
