//! Mutex and condition variable of libc for native threads. `std.Io` has its own, but they need an
//! event loop to wait in.

const std = @import("std");
const c = std.c;

pub const Mutex = struct {
    inner: c.pthread_mutex_t = .{},

    pub fn lock(self: *Mutex) void {
        std.debug.assert(c.pthread_mutex_lock(&self.inner) == .SUCCESS);
    }

    pub fn unlock(self: *Mutex) void {
        std.debug.assert(c.pthread_mutex_unlock(&self.inner) == .SUCCESS);
    }
};

pub const Condition = struct {
    inner: c.pthread_cond_t = .{},

    /// Releases `mutex`, waits for a signal and locks `mutex` again. May return without a signal.
    pub fn wait(self: *Condition, mutex: *Mutex) void {
        std.debug.assert(c.pthread_cond_wait(&self.inner, &mutex.inner) == .SUCCESS);
    }

    pub fn signal(self: *Condition) void {
        std.debug.assert(c.pthread_cond_signal(&self.inner) == .SUCCESS);
    }

    pub fn broadcast(self: *Condition) void {
        std.debug.assert(c.pthread_cond_broadcast(&self.inner) == .SUCCESS);
    }
};
