//! Helper threads for slow work: connecting, stopping and destroying queue pairs, registering
//! memory, and computing checksums.

const std = @import("std");
const verbs = @import("verbs.zig");
const pair = @import("pair.zig");
const Device = @import("device.zig").Device;
const Hub = @import("hub.zig").Hub;
const Link = @import("link.zig").Link;
const Loan = @import("loan.zig").Loan;
const Read = @import("read.zig").Read;

pub const Job = union(enum) {
    connect: *Link,
    /// Stop the link's queue pair.
    sever: *Link,
    /// Destroy the link's queue pair.
    destroy: *Link,
    lend: *Loan,
    take_back: *Loan,
    hash: *Read,
    slice: struct { device: *Device, index: usize },
};

pub fn run(hub: *Hub) void {
    hub.mutex.lock();
    defer hub.mutex.unlock();
    while (true) {
        // All links are closed, so no remaining job has an effect.
        if (hub.stopping.load(.acquire)) return;
        if (hub.jobs.count == 0) {
            hub.work.wait(&hub.mutex);
            continue;
        }
        do(hub, hub.jobs.pop());
    }
}

/// Runs one job. The caller holds the mutex; this function releases it during slow work.
fn do(hub: *Hub, job: Job) void {
    switch (job) {
        .connect => |link| {
            hub.mutex.unlock();
            const code = pair.connect(link);
            hub.mutex.lock();
            link.connected(code);
        },
        .sever => |link| {
            hub.mutex.unlock();
            link.is_stopped = pair.stop(link);
            hub.mutex.lock();
            link.severed();
        },
        .destroy => |link| {
            hub.mutex.unlock();
            const device = link.port.?.device;
            const errno = device.insist(hub.symbols.ibv_destroy_qp, link.qp);
            hub.mutex.lock();
            // The device may still write to the region, whose memory must not be reused.
            if (errno != 0 and !link.is_stopped) @panic("a queue pair cannot be stopped");
            link.destroyed();
        },
        .lend => |loan| {
            const device = loan.link.port.?.device;
            hub.mutex.unlock();
            const outcome = device.domain.register(loan.span, verbs.access_remote_read);
            hub.mutex.lock();
            switch (outcome) {
                .mr => |mr| loan.registered(mr, 0),
                .errno => |errno| loan.registered(null, errno),
            }
        },
        .take_back => |loan| {
            hub.mutex.unlock();
            const device = loan.link.port.?.device;
            const errno = device.insist(hub.symbols.ibv_dereg_mr, loan.mr.?);
            hub.mutex.lock();
            loan.returned(errno);
        },
        .hash => |read| {
            const filled = read.arrived;
            hub.mutex.unlock();
            const sum = read.hash(filled);
            hub.mutex.lock();
            read.hashedUpTo(filled, sum);
        },
        .slice => |slice| hub.registerSlice(slice.device, slice.index),
    }
}
