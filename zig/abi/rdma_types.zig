//! Types of the library's C interface for RDMA.

/// Whether RDMA can be used on this host, or the reason if it cannot.
pub const RdmaState = enum(u32) {
    ready = 0,
    /// libibverbs.so.1 does not exist.
    no_library = 1,
    no_device = 2,
    /// The limit of locked memory (RLIMIT_MEMLOCK) is too small to register memory.
    memlock = 3,
    not_permitted = 4,
    /// libibverbs.so.1 lacks a required function.
    too_old = 5,
    failed = 6,
};

pub const RdmaPortState = enum(u32) {
    active = 0,
    down = 1,
    /// The port has no address that other hosts can reach.
    no_address = 2,
    /// The device has failed and stays unusable in this process.
    fatal = 3,
};

pub const RdmaEvent = enum(u32) {
    /// A span is lent, so the other host can read it: `result` is its address for the other host,
    /// `key` its remote key.
    lent = 0,
    /// The other host can no longer read the lent span.
    returned = 1,
    /// A read has ended; if it succeeded, `result` is XXH3-64 of its span.
    read = 2,
    /// The link has ended. No further event of this link follows.
    ended = 3,
    /// The state of a port has changed; `token` is its index.
    port = 4,
};

pub const RdmaFault = enum(u32) {
    none = 0,
    /// The queue pair failed. `code` is the status of the completion (ibv_wc_status) or, if
    /// negative, the negated errno with which the device refused to connect.
    broken = 1,
    /// This side ended the link or cancelled the read.
    cancelled = 2,
    /// The limit of lent bytes is reached, or a table is full.
    full = 3,
    /// The memory could not be registered with the device; `code` is the errno.
    unregistered = 4,
    /// The device or its port failed, or its address changed.
    port = 5,
};

/// The step at which the test whether a NIC can write to a GPU's memory failed.
pub const RdmaDirectStep = enum(u32) {
    /// No step failed: the READ completed. The caller must still check that its bytes arrived in
    /// the GPU's memory.
    works = 0,
    /// libibverbs.so.1 is missing or lacks a required function.
    library = 1,
    device = 2,
    port = 3,
    /// The region's memory could not be registered with the NIC.
    memory = 4,
    /// The GPU's memory could not be registered with the NIC.
    dma_buf = 5,
    pair = 6,
    /// The READ failed; `code` is the status of the completion (ibv_wc_status).
    read = 7,
    /// The READ did not complete before the deadline.
    late = 8,
};

pub const RdmaRequest = extern struct {
    /// Handle of the region (arena) that RDMA uses; it cannot close before RDMA.
    region: u64,
    /// Address of the path of the verbs library, terminated by a zero byte; 0 for libibverbs.so.1.
    library: u64,
    /// Largest number of bytes that other hosts can read at the same time.
    window_bytes: u64,
    /// Largest number of spans that other hosts can read at the same time.
    window_spans: u32,
    links: u32,
    /// Largest number of reads whose events are not reaped, over all links.
    reads: u32,
    /// Size in bytes of the list of device names at address `devices`. Each name ends with a zero
    /// byte, and an empty name ends the list. Without names all devices are used.
    devices_bytes: u32,
    devices: u64,
    /// Index in the GID table for all ports whose table has it; 2^32-1 lets the library choose.
    gid_index: u32,
    reserved: u32,
};

pub const RdmaInfo = extern struct {
    /// Handle of RDMA; 0 unless the state is `ready`.
    handle: u64,
    event_fd: i32,
    /// A `RdmaState` as a number.
    state: u32,
    ports: u32,
    /// The errno that caused the state; 0 if there is none.
    errno: i32,
};

pub const RdmaPort = extern struct {
    /// Name of the device, terminated by a zero byte.
    device: [64]u8,
    gid: [16]u8,
    /// Largest RDMA message of the port, in bytes.
    message_bytes_max: u64,
    /// Current speed of the port in Mbit/s; 0: unknown.
    speed: u64,
    number: u32,
    /// A `RdmaPortState` as a number.
    state: u32,
    gid_index: u32,
    /// GID type: 0 InfiniBand or RoCE v1, 2 RoCE v2.
    gid_type: u32,
    lid: u32,
    /// Path MTU in bytes.
    mtu: u32,
    /// `reads_out`: READs that a queue pair can have in flight as requester. The next field is the
    /// same as responder.
    reads_out: u32,
    reads_in: u32,
    /// Link layer: 1 InfiniBand, 2 Ethernet.
    link_layer: u32,
    numa_node: i32,
    has_relaxed_ordering: u32,
    has_dma_buf: u32,
};

/// Address and parameters of a queue pair, which the other host needs to connect to it.
pub const RdmaAddress = extern struct {
    gid: [16]u8,
    queue_pair: u32,
    /// First packet sequence number; 24 bits.
    psn: u32,
    lid: u32,
    mtu: u32,
    reads_out: u32,
    reads_in: u32,
};

pub const RdmaLinkRequest = extern struct {
    /// Token that the link's event `ended` carries.
    token: u64,
    /// Index of the port that the link uses.
    port: u32,
    /// Exponent of the packet timeout: an unanswered packet is sent again after 4.096 us *
    /// 2^timeout. 1 to 31.
    timeout: u32,
    /// Number of times that an unanswered packet is sent again, 1 to 6. With 7, soft-RoCE never
    /// stops.
    retries: u32,
    traffic_class: u32,
    service_level: u32,
    /// Largest size of one READ in bytes; a multiple of 4096.
    piece_bytes: u32,
};

/// A span of the region that the other host may read, or into which a read goes.
pub const RdmaSpan = extern struct {
    token: u64,
    offset: u64,
    bytes: u64,
    /// Remote address to read from, as the other host's `lent` event reported it. Unused when
    /// lending.
    address: u64,
    key: u32,
    reserved: u32,
};

/// A test READ from the region into a dma-buf that the GPU driver exported.
pub const RdmaDirectRequest = extern struct {
    region: u64,
    offset: u64,
    bytes: u64,
    /// Address of the path of the verbs library, as in `RdmaRequest`.
    library: u64,
    /// Name of the device, terminated by a zero byte.
    device: [64]u8,
    /// Offset in the dma-buf to write to.
    buffer_offset: u64,
    /// Descriptor of the dma-buf; the caller still owns it.
    fd: i32,
    port: u32,
    gid_index: u32,
    reserved: u32,
};

pub const RdmaDirect = extern struct {
    /// A `RdmaDirectStep` as a number.
    step: u32,
    /// The errno or completion status with which the step failed; 0 if there is none.
    code: i32,
};

pub const RdmaDone = extern struct {
    token: u64,
    result: u64,
    key: u32,
    /// A `RdmaEvent` as a number.
    event: u32,
    /// A `RdmaFault` as a number.
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
