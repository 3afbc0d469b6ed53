//! The exported functions except those of the router, GPUs, RDMA and MACs. They contain no logic:
//! each converts its arguments, calls a function of calls.zig or lane_calls.zig, and maps the error
//! to a status.

const memory = @import("../mem/root.zig");
const unix = @import("../net/unix.zig");
const errno = @import("../base/errno.zig");
const types = @import("types.zig");
const status = @import("status.zig");
const calls = @import("calls.zig");
const lane_calls = @import("lane_calls.zig");
const echo = @import("echo.zig");
const code = status.code;
const codeOrCount = status.codeOrCount;

/// Functions by exported name. The generator derives the TypeScript bindings from their parameters.
pub const exports = struct {
    pub fn hearth_abi(out: ?*types.AbiInfo) callconv(.c) i32 {
        return code(calls.abi(out));
    }

    /// Round-trip test of the structs: reads the struct with number `index` from `in` and writes it
    /// to `out` with every bit inverted.
    pub fn hearth_abi_echo(index: u32, in: ?[*]const u8, out: ?[*]u8) callconv(.c) i32 {
        return code(echo.run(index, in, out));
    }

    pub fn hearth_last_errno() callconv(.c) i32 {
        return errno.lastErrno();
    }

    pub fn hearth_region_create(
        request: ?*const types.RegionRequest,
        info: ?*types.RegionInfo,
    ) callconv(.c) i32 {
        return code(calls.regionCreate(request, info));
    }

    /// Takes over the arena of an earlier process. If the call fails, the caller still owns the
    /// descriptor.
    pub fn hearth_region_adopt(
        request: ?*const types.AdoptRequest,
        info: ?*types.RegionInfo,
    ) callconv(.c) i32 {
        return code(calls.regionAdopt(request, info));
    }

    pub fn hearth_region_map(
        request: ?*const types.MapRequest,
        info: ?*types.RegionInfo,
    ) callconv(.c) i32 {
        return code(calls.regionMap(request, info));
    }

    pub fn hearth_region_info(handle: u64, info: ?*types.RegionInfo) callconv(.c) i32 {
        return code(calls.regionInfo(handle, info));
    }

    /// Makes the kernel allocate the span's pages on this NUMA node while the node has memory.
    /// Pages that are already allocated do not move.
    pub fn hearth_region_bind(handle: u64, offset: u64, bytes: u64, node: u32) callconv(.c) i32 {
        return code(calls.regionBind(handle, offset, bytes, node));
    }

    pub fn hearth_region_close(handle: u64) callconv(.c) i32 {
        return code(memory.table.close(handle));
    }

    pub fn hearth_region_copy_in(request: ?*const types.CopyRequest, sum: ?*u64) callconv(.c) i32 {
        return code(calls.copyIn(request, sum));
    }

    pub fn hearth_region_copy_out(request: ?*const types.CopyRequest, sum: ?*u64) callconv(.c) i32 {
        return code(calls.copyOut(request, sum));
    }

    pub fn hearth_region_checksum(request: ?*const types.SpanRequest, sum: ?*u64) callconv(.c) i32 {
        return code(calls.regionChecksum(request, sum));
    }

    /// Fills the span with the test pattern of the request's seed.
    pub fn hearth_region_fill(request: ?*const types.SpanRequest) callconv(.c) i32 {
        return code(calls.regionFill(request));
    }

    /// Compares the span with its test pattern. `wrong_at` receives the offset of the first
    /// difference, or 2^64-1 if there is none.
    pub fn hearth_region_check(
        request: ?*const types.SpanRequest,
        wrong_at: ?*u64,
    ) callconv(.c) i32 {
        return code(calls.regionCheck(request, wrong_at));
    }

    pub fn hearth_queue_create(
        request: ?*const types.QueueRequest,
        info: ?*types.QueueInfo,
    ) callconv(.c) i32 {
        return code(calls.queueCreate(request, info));
    }

    pub fn hearth_queue_submit(
        handle: u64,
        submissions: ?[*]const types.Submission,
        count: u32,
    ) callconv(.c) i32 {
        return codeOrCount(calls.queueSubmit(handle, submissions, count));
    }

    pub fn hearth_queue_reap(
        handle: u64,
        completions: ?[*]types.Completion,
        count: u32,
    ) callconv(.c) i32 {
        return codeOrCount(calls.queueReap(handle, completions, count));
    }

    pub fn hearth_queue_watch(handle: u64, pid_fd: i32, token: u32) callconv(.c) i32 {
        return code(calls.queueWatch(handle, pid_fd, token));
    }

    pub fn hearth_queue_unwatch(handle: u64, pid_fd: i32) callconv(.c) i32 {
        return code(calls.queueUnwatch(handle, pid_fd));
    }

    pub fn hearth_queue_close(handle: u64) callconv(.c) i32 {
        return code(calls.queueClose(handle));
    }

    pub fn hearth_disk_create(
        request: ?*const types.DiskRequest,
        info: ?*types.DiskInfo,
    ) callconv(.c) i32 {
        return code(calls.diskCreate(request, info));
    }

    pub fn hearth_disk_info(handle: u64, info: ?*types.DiskInfo) callconv(.c) i32 {
        return code(calls.diskInfo(handle, info));
    }

    pub fn hearth_disk_submit(handle: u64, job: ?*const types.DiskJob) callconv(.c) i32 {
        return code(calls.diskSubmit(handle, job));
    }

    pub fn hearth_disk_reap(handle: u64, done: ?[*]types.DiskDone, count: u32) callconv(.c) i32 {
        return codeOrCount(calls.diskReap(handle, done, count));
    }

    /// Closes the disk. Returns `busy` while jobs are in progress; their memory is then not freed.
    pub fn hearth_disk_close(handle: u64) callconv(.c) i32 {
        return code(calls.diskClose(handle));
    }

    pub fn hearth_lanes_create(
        request: ?*const types.LanesRequest,
        info: ?*types.LanesInfo,
    ) callconv(.c) i32 {
        return code(lane_calls.create(request, info));
    }

    /// Starts to accept lane connections and returns the port.
    pub fn hearth_lanes_listen(handle: u64, address: ?*const types.LaneAddress) callconv(.c) i32 {
        return codeOrCount(lane_calls.listen(handle, address));
    }

    /// Begins a session whose lanes the other side dials; `out` receives its handle.
    pub fn hearth_lanes_expect(
        handle: u64,
        session: ?*const types.LaneSession,
        out: ?*u64,
    ) callconv(.c) i32 {
        return code(lane_calls.expect(handle, session, out));
    }

    /// Begins a session whose lanes this side dials; `out` receives its handle.
    pub fn hearth_lanes_dial(
        handle: u64,
        session: ?*const types.LaneSession,
        address: ?*const types.LaneAddress,
        out: ?*u64,
    ) callconv(.c) i32 {
        return code(lane_calls.dial(handle, session, address, out));
    }

    pub fn hearth_lanes_reap(handle: u64, done: ?[*]types.LaneDone, count: u32) callconv(.c) i32 {
        return codeOrCount(lane_calls.reap(handle, done, count));
    }

    /// Closes all lanes. Returns `busy` and frees nothing while a session has not reported its end.
    pub fn hearth_lanes_close(handle: u64) callconv(.c) i32 {
        return code(lane_calls.close(handle));
    }

    /// Begins a transfer: the sending side sends the span, the receiving side expects a transfer
    /// into it. The library owns the span until the completion.
    pub fn hearth_session_begin(
        handle: u64,
        transfer: ?*const types.LaneTransfer,
    ) callconv(.c) i32 {
        return code(lane_calls.begin(handle, transfer));
    }

    pub fn hearth_session_cancel(handle: u64, number: u32) callconv(.c) i32 {
        return code(lane_calls.cancel(handle, number));
    }

    /// Writes to `out` how many bytes of the transfer have arrived; 0 if the transfer is unknown.
    pub fn hearth_session_arrived(handle: u64, number: u32, out: ?*u64) callconv(.c) i32 {
        return code(lane_calls.arrived(handle, number, out));
    }

    /// Closes the handle and ends its session, whose remaining completions still arrive.
    pub fn hearth_session_end(handle: u64) callconv(.c) i32 {
        return code(lane_calls.end(handle));
    }

    /// Seals adjacent records, each a header and its payload.
    pub fn hearth_records_seal(
        place: ?*const types.RecordPlace,
        plain: ?[*]const u8,
        length: u32,
        out: ?[*]u8,
        room: u32,
    ) callconv(.c) i32 {
        return codeOrCount(lane_calls.seal(place, plain, length, out, room));
    }

    /// Opens records that `hearth_records_seal` sealed. Returns `forged` if a record is not
    /// authentic, `short` if the last one is incomplete.
    pub fn hearth_records_open(
        place: ?*const types.RecordPlace,
        sealed: ?[*]const u8,
        length: u32,
        out: ?[*]u8,
        room: u32,
    ) callconv(.c) i32 {
        return codeOrCount(lane_calls.open(place, sealed, length, out, room));
    }

    /// Opens a listening socket for the benchmark that compares lanes with plain TCP.
    pub fn hearth_plain_listen(out: ?*types.PlainListener) callconv(.c) i32 {
        return code(calls.plainListen(out));
    }

    /// Serves blocks over plain TCP for a benchmark. Blocks until `connections` connections were
    /// accepted and have ended.
    pub fn hearth_plain_serve(region: u64, listener: i32, connections: u32) callconv(.c) i32 {
        return code(calls.plainServe(region, listener, connections));
    }

    /// Pulls blocks over plain TCP for a benchmark. Blocks until all have arrived.
    pub fn hearth_plain_pull(request: ?*const types.PlainPull) callconv(.c) i32 {
        return code(calls.plainPull(request));
    }

    /// Locks the file exclusively and returns its descriptor; `try_again` if another process has
    /// the lock.
    pub fn hearth_file_lock(path: ?[*]const u8, path_length: u32) callconv(.c) i32 {
        return codeOrCount(calls.fileLock(path, path_length));
    }

    /// Sets the plan of injected failures (zig/base/faults.zig). An empty plan removes the current
    /// one.
    pub fn hearth_faults(plan: ?[*]const u8, length: u32) callconv(.c) i32 {
        return code(calls.faults(plan, length));
    }

    /// Counts one hit of the named TypeScript call. Returns 0, or the errno with which the plan
    /// makes the call fail.
    pub fn hearth_fault_point(name: ?[*]const u8, length: u32) callconv(.c) i32 {
        return codeOrCount(calls.faultPoint(name, length));
    }

    /// Writes a line `name count` for each call that was hit since the fault plan was set.
    pub fn hearth_fault_counts(out: ?[*]u8, length: u32) callconv(.c) i32 {
        return codeOrCount(calls.faultCounts(out, length));
    }

    pub fn hearth_prefix_digests(request: ?*const types.DigestRequest) callconv(.c) i32 {
        return codeOrCount(calls.prefixDigests(request));
    }

    /// Writes one digest for each item of `item_bytes`: keyed BLAKE3 of that item alone.
    pub fn hearth_chain_digests(
        key: ?*const [32]u8,
        items: ?[*]const u8,
        item_bytes: u32,
        count: u32,
        out: ?[*][32]u8,
    ) callconv(.c) i32 {
        return code(calls.chainDigests(key, items, item_bytes, count, out));
    }

    pub fn hearth_block_keys(
        digests: ?[*]const [32]u8,
        layer: u32,
        count: u32,
        out: ?[*][32]u8,
    ) callconv(.c) i32 {
        return code(calls.blockKeys(digests, layer, count, out));
    }

    pub fn hearth_blake3(
        data: ?[*]const u8,
        length: u64,
        out: ?*[32]u8,
    ) callconv(.c) i32 {
        return code(calls.blake3(data, length, out));
    }

    pub fn hearth_blake3_keyed(
        key: ?*const [32]u8,
        data: ?[*]const u8,
        length: u64,
        out: ?*[32]u8,
    ) callconv(.c) i32 {
        return code(calls.blake3Keyed(key, data, length, out));
    }

    pub fn hearth_blake3_derive_key(
        context: ?[*]const u8,
        context_length: u64,
        material: ?[*]const u8,
        material_length: u64,
        out: ?*[32]u8,
    ) callconv(.c) i32 {
        return code(calls.blake3DeriveKey(context, context_length, material, material_length, out));
    }

    pub fn hearth_xxh3_64(data: ?[*]const u8, length: u64, out: ?*u64) callconv(.c) i32 {
        return code(calls.xxh3_64(data, length, out));
    }

    /// Writes XXH3-128 of the data in canonical form: 16 bytes, big-endian.
    pub fn hearth_xxh3_128(data: ?[*]const u8, length: u64, out: ?*[16]u8) callconv(.c) i32 {
        return code(calls.xxh3_128(data, length, out));
    }

    pub fn hearth_socket_peer(socket: i32, out: ?*types.PeerInfo) callconv(.c) i32 {
        return code(calls.socketPeer(socket, out));
    }

    /// Writes up to `max` supplementary group ids of the process at the other end of the socket,
    /// and returns their number.
    pub fn hearth_socket_peer_groups(socket: i32, out: ?[*]u32, max: u32) callconv(.c) i32 {
        return codeOrCount(calls.socketPeerGroups(socket, out, max));
    }

    pub fn hearth_socket_send_fd(
        socket: i32,
        data: ?[*]const u8,
        length: u32,
        fd: i32,
    ) callconv(.c) i32 {
        return codeOrCount(calls.socketSendFd(socket, data, length, fd));
    }

    pub fn hearth_socket_receive_fd(
        socket: i32,
        data: ?[*]u8,
        length: u32,
        fd: ?*i32,
    ) callconv(.c) i32 {
        return codeOrCount(calls.socketReceiveFd(socket, data, length, fd));
    }

    /// Creates two sockets that are connected to each other (SOCK_SEQPACKET) and writes their
    /// descriptors to `out`.
    pub fn hearth_socket_pair(out: ?*[2]i32) callconv(.c) i32 {
        return code(calls.socketPair(out));
    }

    pub fn hearth_close_fd(fd: i32) callconv(.c) i32 {
        return code(calls.closeFd(fd));
    }

    pub fn hearth_notify(
        path: ?[*]const u8,
        path_length: u32,
        state: ?[*]const u8,
        state_length: u32,
        fds: ?[*]const i32,
        fd_count: u32,
    ) callconv(.c) i32 {
        return code(calls.notify(path, path_length, state, state_length, fds, fd_count));
    }

    /// Closes connections of the TCP server on `port` that have sent no byte for `silent_ms`
    /// milliseconds. Returns the number of its other connections among the descriptors examined.
    pub fn hearth_end_silent(port: u32, first: u32, count: u32, silent_ms: u32) callconv(.c) i32 {
        return codeOrCount(calls.endSilent(port, first, count, silent_ms));
    }

    /// Limits how many connections and bytes this process's TCP listeners on `port` accept in one
    /// turn of the event loop. Returns the number of listeners.
    pub fn hearth_tune_listener(port: u32, backlog: u32, receive_bytes: u32) callconv(.c) i32 {
        return codeOrCount(calls.tuneListener(port, backlog, receive_bytes));
    }

    /// Disables the error queue and enlarges the buffers of this process's UDP sockets on `port`.
    /// Returns the number of sockets.
    pub fn hearth_tune_udp(port: u32, buffer_bytes: u32) callconv(.c) i32 {
        return codeOrCount(calls.tuneUdp(port, buffer_bytes));
    }

    /// Writes CLOCK_MONOTONIC in microseconds. systemd compares this value at a reload, and Bun
    /// cannot read this clock.
    pub fn hearth_monotonic_us(out: ?*u64) callconv(.c) i32 {
        return code(calls.monotonicUs(out));
    }

    /// Writes CLOCK_THREAD_CPUTIME_ID in microseconds. The runtime's own counter is up to a
    /// scheduler tick (4 ms) late.
    pub fn hearth_thread_cpu_us(out: ?*u64) callconv(.c) i32 {
        return code(calls.threadCpuUs(out));
    }

    pub fn hearth_probe_io_uring() callconv(.c) i32 {
        return code(unix.probeIoUring());
    }
};
