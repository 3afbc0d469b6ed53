//! Registers parts of the region with the CUDA driver, so that copies need no buffer of the driver
//! and do not block the device's thread.

const std = @import("std");
const cuda = @import("driver.zig");
const caller_file = @import("caller.zig");
const Worker = @import("worker.zig").Worker;
const Slice = @import("slices.zig").Slice;
const Error = @import("../abi/status.zig").Error;

const page_bytes = 4096;

/// Registers the unregistered parts of the span. After an error the parts before it stay
/// registered.
pub fn register(worker: *Worker, offset: u64, bytes: u64) Error!void {
    const region = worker.hub.region orelse return error.OutOfRange;
    if (offset % page_bytes != 0 or bytes % page_bytes != 0) return error.BadRequest;
    _ = try region.span(offset, bytes);
    const slices = &worker.hub.slices;
    const end = offset + bytes;
    var at = offset;
    while (at < end) {
        const reach = slices.reachAt(at, end);
        const slice: Slice = .{ .offset = at, .bytes = reach.end - at, .owner = worker.index };
        if (!reach.is_registered) try registerSlice(worker, slice);
        at = reach.end;
        // Registering a gigabyte takes long, so report progress and complete finished copies.
        worker.poll();
        if (worker.isLost()) return error.Lost;
    }
}

fn registerSlice(worker: *Worker, wanted: Slice) Error!void {
    var slice = wanted;
    const slices = &worker.hub.slices;
    if (!slices.hasRoom()) return error.Full;
    const caller = &worker.caller;
    const address = worker.hub.region.?.base + slice.offset;
    const call = caller.driver.cuMemHostRegister_v2;
    const code = call(address, slice.bytes, cuda.register_portable);
    // Another part of this process has registered the memory. Copies work, but this code must not
    // unregister it.
    slice.is_ours = code != caller_file.already_registered;
    if (slice.is_ours) try caller.check(code);
    const is_new = slices.add(slice) catch |err| {
        unregisterSlice(worker, slice);
        return err;
    };
    // Another device has registered the slice meanwhile; that registration stays.
    if (!is_new) unregisterSlice(worker, slice);
}

fn unregisterSlice(worker: *Worker, slice: Slice) void {
    if (!slice.is_ours) return;
    const caller = &worker.caller;
    const address = worker.hub.region.?.base + slice.offset;
    caller.ignore(caller.driver.cuMemHostUnregister(address));
}

/// Unregisters all slices that this device registered.
pub fn unregister(worker: *Worker) Error!void {
    worker.caller.code = 0;
    while (worker.hub.slices.takeOf(worker.index)) |slice| {
        worker.beat();
        unregisterSlice(worker, slice);
        if (caller_file.isFatal(worker.caller.code)) return error.Lost;
    }
}

/// Registers the slices of a lost device again, because copies of the other devices need them and
/// the registrations ended with its context.
pub fn adopt(worker: *Worker, owner: u32) void {
    if (worker.isLost()) return;
    while (worker.hub.slices.takeOf(owner)) |slice| {
        worker.caller.code = 0;
        const again: Slice =
            .{ .offset = slice.offset, .bytes = slice.bytes, .owner = worker.index };
        registerSlice(worker, again) catch |err| {
            // Copies from this slice block from now on; `pageable_copies` counts them.
            if (err != error.Lost) continue;
            return worker.lose(worker.caller.code);
        };
        worker.poll();
        if (worker.isLost()) return;
    }
}
