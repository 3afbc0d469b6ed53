//! What crosses the boundary about RDMA.

/// Whether RDMA can be used on this host.
pub const RdmaState = enum(u32) {
    ready = 0,
    /// There is no libibverbs.so.1.
    no_library = 1,
    no_device = 2,
    /// The limit of locked memory is too small to register anything.
    memlock = 3,
    not_permitted = 4,
    /// The library lacks a call that is needed.
    too_old = 5,
    failed = 6,
};

pub const RdmaPortState = enum(u32) {
    active = 0,
    down = 1,
    /// It has no address that other hosts could use.
    no_address = 2,
    /// The device failed and works no more in this process.
    fatal = 3,
};

pub const RdmaEvent = enum(u32) {
    /// A span is lent: `result` is its address for the other side, `key` opens it.
    lent = 0,
    /// Nobody reads it any more.
    returned = 1,
    /// A read is over: `result` is XXH3-64 of its span.
    read = 2,
    /// The last event of a link.
    ended = 3,
    /// A port's state has changed; `token` is its index.
    port = 4,
};

pub const RdmaFault = enum(u32) {
    none = 0,
    /// The queue pair failed; `code` is the status of the completion (ibv_wc_status), or below
    /// zero: the errno with which the device refused to connect it.
    broken = 1,
    /// This side ended it, or gave the read up.
    cancelled = 2,
    /// The window, or a table, is full.
    full = 3,
    /// The memory could not be registered; `code` is the errno.
    unregistered = 4,
    /// The device or its port is gone.
    port = 5,
};

/// What kept a NIC from writing to a GPU's memory.
pub const RdmaDirectStep = enum(u32) {
    /// Nothing: the READ has ended well. Whether its bytes arrived is another question.
    works = 0,
    /// The library is missing, or lacks a call that is needed.
    library = 1,
    device = 2,
    port = 3,
    /// The region's memory could not be registered.
    memory = 4,
    /// The GPU's could not.
    dma_buf = 5,
    pair = 6,
    /// `code` is the status of the completion.
    read = 7,
    /// It did not end in time.
    late = 8,
};

pub const RdmaRequest = extern struct {
    /// The arena that is read from and written to; it cannot close before.
    region: u64,
    /// Address of the library's path, ended by a zero byte; 0 for libibverbs.so.1.
    library: u64,
    /// Bytes lent at the same time, at most.
    window_bytes: u64,
    /// Spans lent at the same time, at most.
    window_spans: u32,
    links: u32,
    /// Reads that are not reaped, over all links.
    reads: u32,
    /// Address of device names with a zero byte behind each and another behind the last, or all.
    devices_bytes: u32,
    devices: u64,
    /// Of ports whose table has it; 2^32-1 chooses by rule.
    gid_index: u32,
    reserved: u32,
};

pub const RdmaInfo = extern struct {
    /// 0 unless the state is `ready`.
    handle: u64,
    event_fd: i32,
    /// A `RdmaState`.
    state: u32,
    ports: u32,
    /// The errno behind the state, or 0.
    errno: i32,
};

pub const RdmaPort = extern struct {
    /// Ends at the first zero byte.
    device: [64]u8,
    gid: [16]u8,
    /// Largest message, in bytes.
    message_bytes_max: u64,
    /// Mbit/s of the port as it is; 0: unknown.
    speed: u64,
    number: u32,
    /// A `RdmaPortState`.
    state: u32,
    gid_index: u32,
    /// 0 InfiniBand or RoCE v1, 2 RoCE v2.
    gid_type: u32,
    lid: u32,
    /// Path MTU in bytes.
    mtu: u32,
    /// READs in flight that a queue pair may begin, and those it may answer.
    reads_out: u32,
    reads_in: u32,
    /// 1 InfiniBand, 2 Ethernet.
    link_layer: u32,
    numa_node: i32,
    has_relaxed_ordering: u32,
    has_dma_buf: u32,
};

/// What one side of a queue pair must know of the other.
pub const RdmaAddress = extern struct {
    gid: [16]u8,
    queue_pair: u32,
    /// First packet sequence number, 24 bits.
    psn: u32,
    lid: u32,
    mtu: u32,
    reads_out: u32,
    reads_in: u32,
};

pub const RdmaLinkRequest = extern struct {
    /// Of the link's events `ended`.
    token: u64,
    /// Index of the port.
    port: u32,
    /// 4.096 us * 2^timeout: after so long without an answer a packet is sent again. 1 to 31.
    timeout: u32,
    /// How often; 1 to 6: soft-RoCE takes 7 for ever.
    retries: u32,
    traffic_class: u32,
    service_level: u32,
    /// One READ reads so many bytes at most; a multiple of 4096.
    piece_bytes: u32,
};

/// A span of the region to lend, or to read into.
pub const RdmaSpan = extern struct {
    token: u64,
    offset: u64,
    bytes: u64,
    /// To read: what the other side said of the span it lent.
    address: u64,
    key: u32,
    reserved: u32,
};

/// A READ out of the region, into a buffer that a GPU's driver exported.
pub const RdmaDirectRequest = extern struct {
    region: u64,
    offset: u64,
    bytes: u64,
    /// As in `RdmaRequest`.
    library: u64,
    /// Ends at the first zero byte.
    device: [64]u8,
    /// Where in the buffer.
    buffer_offset: u64,
    /// The buffer; it stays the caller's.
    fd: i32,
    port: u32,
    gid_index: u32,
    reserved: u32,
};

pub const RdmaDirect = extern struct {
    /// A `RdmaDirectStep`.
    step: u32,
    /// The errno behind it, or 0.
    code: i32,
};

pub const RdmaDone = extern struct {
    token: u64,
    result: u64,
    key: u32,
    /// A `RdmaEvent`.
    event: u32,
    /// A `RdmaFault`.
    fault: u32,
    code: i32,
};

pub const enums = .{
    .{ .name = "RDMA_STATE", .type = RdmaState },
    .{ .name = "RDMA_PORT_STATE", .type = RdmaPortState },
    .{ .name = "RDMA_DIRECT_STEP", .type = RdmaDirectStep },
    .{ .name = "RDMA_EVENT", .type = RdmaEvent },
    .{ .name = "RDMA_FAULT", .type = RdmaFault },
};

pub const all = .{
    RdmaRequest,       RdmaInfo,   RdmaPort, RdmaAddress, RdmaLinkRequest, RdmaSpan,
    RdmaDirectRequest, RdmaDirect, RdmaDone,
};
