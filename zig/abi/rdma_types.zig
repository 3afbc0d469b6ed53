//! Types of the boundary for RDMA.

/// Whether RDMA can be used on this host.
pub const RdmaState = enum(u32) {
    ready = 0,
    /// libibverbs.so.1 does not exist.
    no_library = 1,
    no_device = 2,
    /// The limit of locked memory is too small to register memory.
    memlock = 3,
    not_permitted = 4,
    /// The library lacks a required function.
    too_old = 5,
    failed = 6,
};

pub const RdmaPortState = enum(u32) {
    active = 0,
    down = 1,
    /// The port has no address that other hosts can use.
    no_address = 2,
    /// The device failed and stays unusable in this process.
    fatal = 3,
};

pub const RdmaEvent = enum(u32) {
    /// A span is lent: `result` is its address for the other side, `key` its remote key.
    lent = 0,
    /// The span can no longer be read by the other side.
    returned = 1,
    /// A read is over: `result` is XXH3-64 of its span.
    read = 2,
    /// The last event of a link.
    ended = 3,
    /// The state of a port has changed; `token` is its index.
    port = 4,
};

pub const RdmaFault = enum(u32) {
    none = 0,
    /// The queue pair failed; `code` is the status of the completion (ibv_wc_status), or negative:
    /// the errno with which the device refused to connect it.
    broken = 1,
    /// This side ended the link or cancelled the read.
    cancelled = 2,
    /// The window or a table is full.
    full = 3,
    /// The memory could not be registered; `code` is the errno.
    unregistered = 4,
    /// The device or its port is gone.
    port = 5,
};

/// The reason why a NIC could not write to a GPU's memory.
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
    /// The read failed; `code` is the status of the completion.
    read = 7,
    /// The read did not end before the deadline.
    late = 8,
};

pub const RdmaRequest = extern struct {
    /// The arena that reads and writes use; it cannot close before RDMA does.
    region: u64,
    /// Address of the library's path, terminated by a zero byte; 0 for libibverbs.so.1.
    library: u64,
    /// Largest number of bytes lent at the same time.
    window_bytes: u64,
    /// Largest number of spans lent at the same time.
    window_spans: u32,
    links: u32,
    /// Largest number of reads that are not reaped, over all links.
    reads: u32,
    /// Address of device names, each terminated by a zero byte and the list by another; without
    /// names all devices are used.
    devices_bytes: u32,
    devices: u64,
    /// Index in the GID table of ports that have it; 2^32-1 lets the library choose.
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
    /// Terminated by a zero byte.
    device: [64]u8,
    gid: [16]u8,
    /// Largest message, in bytes.
    message_bytes_max: u64,
    /// Current speed of the port in Mbit/s; 0: unknown.
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
    /// READs that a queue pair may have in flight, as requester and as responder.
    reads_out: u32,
    reads_in: u32,
    /// 1 InfiniBand, 2 Ethernet.
    link_layer: u32,
    numa_node: i32,
    has_relaxed_ordering: u32,
    has_dma_buf: u32,
};

/// The data of a queue pair that the other side needs to connect.
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
    /// The token of the link's event `ended`.
    token: u64,
    /// Index of the port.
    port: u32,
    /// 4.096 us * 2^timeout: a packet without an answer is sent again after this time. 1 to 31.
    timeout: u32,
    /// Number of retries, 1 to 6: soft-RoCE retries for ever with 7.
    retries: u32,
    traffic_class: u32,
    service_level: u32,
    /// Largest size of one READ; a multiple of 4096.
    piece_bytes: u32,
};

/// A span of the region to lend or to read into.
pub const RdmaSpan = extern struct {
    token: u64,
    offset: u64,
    bytes: u64,
    /// For a read: the address that the other side's `lent` event carried.
    address: u64,
    key: u32,
    reserved: u32,
};

/// A READ from the region into a buffer that a GPU driver exported.
pub const RdmaDirectRequest = extern struct {
    region: u64,
    offset: u64,
    bytes: u64,
    /// As in `RdmaRequest`.
    library: u64,
    /// Terminated by a zero byte.
    device: [64]u8,
    /// Offset in the buffer.
    buffer_offset: u64,
    /// Descriptor of the buffer; the caller still owns it.
    fd: i32,
    port: u32,
    gid_index: u32,
    reserved: u32,
};

pub const RdmaDirect = extern struct {
    /// A `RdmaDirectStep`.
    step: u32,
    /// The errno behind the step, or 0.
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
