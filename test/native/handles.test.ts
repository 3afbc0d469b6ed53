import { expect, test } from "bun:test";
import {
  FUNCTIONS,
  type FunctionName,
  loadNative,
  type Native,
  nativeBuffer,
  Queue,
  Region,
  STATUS,
  STRUCTS,
} from "../../src/native/index.ts";
import { describeNative } from "../support/native.ts";

const PAGE = 4096;

function region(native: Native): Region {
  return Region.create(native, { bytes: PAGE, hugePages: "off", lockMemory: "off" });
}

/** Every export that takes a handle, called with one and otherwise valid arguments. */
function callsWithHandle(native: Native): Record<string, (handle: number) => number> {
  const { symbols } = native;
  const memory = nativeBuffer(PAGE);
  const out = nativeBuffer(256);
  const request = (handle: number, buffer: number) => {
    const bytes = new Uint8Array(new ArrayBuffer(104));
    const view = new DataView(bytes.buffer);
    view.setBigUint64(0, BigInt(handle), true);
    view.setBigUint64(16, 64n, true);
    view.setBigUint64(24, BigInt(buffer), true);
    return bytes;
  };
  const copy = (handle: number) => request(handle, memory.address);
  const span = (handle: number) => request(handle, 0);
  return {
    hearth_region_info: (handle) => symbols.hearth_region_info(handle, out.bytes),
    hearth_region_close: (handle) => symbols.hearth_region_close(handle),
    hearth_region_copy_in: (handle) => symbols.hearth_region_copy_in(copy(handle), out.bytes),
    hearth_region_copy_out: (handle) => symbols.hearth_region_copy_out(copy(handle), out.bytes),
    hearth_region_mac_in: (handle) => symbols.hearth_region_mac_in(copy(handle), out.bytes),
    hearth_region_mac_out: (handle) => symbols.hearth_region_mac_out(copy(handle)),
    hearth_region_mac_check: (handle) => symbols.hearth_region_mac_check(span(handle)),
    hearth_region_checksum: (handle) => symbols.hearth_region_checksum(span(handle), out.bytes),
    hearth_region_fill: (handle) => symbols.hearth_region_fill(span(handle)),
    hearth_region_bind: (handle) => symbols.hearth_region_bind(handle, 0, PAGE, 0),
    hearth_region_check: (handle) => symbols.hearth_region_check(span(handle), out.bytes),
    hearth_queue_submit: (handle) => symbols.hearth_queue_submit(handle, memory.bytes, 0),
    hearth_queue_reap: (handle) => symbols.hearth_queue_reap(handle, memory.bytes, 1),
    hearth_queue_watch: (handle) => symbols.hearth_queue_watch(handle, 1_000_000, 1),
    hearth_queue_unwatch: (handle) => symbols.hearth_queue_unwatch(handle, 1_000_000),
    hearth_queue_close: (handle) => symbols.hearth_queue_close(handle),
    hearth_disk_info: (handle) => symbols.hearth_disk_info(handle, out.bytes),
    hearth_disk_submit: (handle) => symbols.hearth_disk_submit(handle, memory.bytes),
    hearth_disk_reap: (handle) => symbols.hearth_disk_reap(handle, memory.bytes, 1),
    hearth_disk_close: (handle) => symbols.hearth_disk_close(handle),
    hearth_lanes_listen: (handle) => symbols.hearth_lanes_listen(handle, memory.bytes),
    hearth_lanes_expect: (handle) => symbols.hearth_lanes_expect(handle, memory.bytes, out.bytes),
    hearth_lanes_dial: (handle) =>
      symbols.hearth_lanes_dial(handle, memory.bytes, memory.bytes, out.bytes),
    hearth_lanes_reap: (handle) => symbols.hearth_lanes_reap(handle, memory.bytes, 1),
    hearth_lanes_close: (handle) => symbols.hearth_lanes_close(handle),
    hearth_session_begin: (handle) => symbols.hearth_session_begin(handle, memory.bytes),
    hearth_session_cancel: (handle) => symbols.hearth_session_cancel(handle, 1),
    hearth_session_arrived: (handle) => symbols.hearth_session_arrived(handle, 1, out.bytes),
    hearth_plain_serve: (handle) => symbols.hearth_plain_serve(handle, -1, 1),
    hearth_session_end: (handle) => symbols.hearth_session_end(handle),
    hearth_prefix_info: (handle) => symbols.hearth_prefix_info(handle, out.bytes),
    hearth_prefix_close: (handle) => symbols.hearth_prefix_close(handle),
    hearth_prefix_apply: (handle) => symbols.hearth_prefix_apply(handle, 0, 0, 0, 0),
    hearth_prefix_match: (handle) => symbols.hearth_prefix_match(handle, memory.bytes, 0, 0),
    hearth_prefix_match_many: (handle) =>
      symbols.hearth_prefix_match_many(handle, memory.bytes, 0, 0, 0, out.bytes),
    hearth_prefix_holders: (handle) =>
      symbols.hearth_prefix_holders(handle, memory.bytes, 1, 1, out.bytes, 1),
    hearth_prefix_sums: (handle) => symbols.hearth_prefix_sums(handle, 1, out.bytes),
    hearth_prefix_dump: (handle) => symbols.hearth_prefix_dump(handle, 1),
    hearth_prefix_dump_next: (handle) =>
      symbols.hearth_prefix_dump_next(handle, memory.bytes, PAGE),
    hearth_prefix_save: (handle) => symbols.hearth_prefix_save(handle),
    hearth_prefix_save_next: (handle) =>
      symbols.hearth_prefix_save_next(handle, memory.bytes, PAGE),
    hearth_prefix_save_end: (handle) => symbols.hearth_prefix_save_end(handle),
    hearth_prefix_load: (handle) => symbols.hearth_prefix_load(handle, memory.bytes, 0),
    hearth_prefix_load_end: (handle) => symbols.hearth_prefix_load_end(handle),
    ...callsOfDevices(native),
  };
}

/** Calls about GPUs and RDMA. */
function callsOfDevices({ symbols }: Native): Record<string, (handle: number) => number> {
  const memory = nativeBuffer(PAGE);
  const out = nativeBuffer(256);
  return {
    hearth_gpus_device: (handle) => symbols.hearth_gpus_device(handle, 0, out.bytes),
    hearth_gpus_submit: (handle) => symbols.hearth_gpus_submit(handle, memory.bytes),
    hearth_gpus_reap: (handle) => symbols.hearth_gpus_reap(handle, memory.bytes, 1),
    hearth_gpus_close: (handle) => symbols.hearth_gpus_close(handle),
    hearth_rdma_port: (handle) => symbols.hearth_rdma_port(handle, 0, out.bytes),
    hearth_rdma_reap: (handle) => symbols.hearth_rdma_reap(handle, memory.bytes, 1),
    hearth_rdma_close: (handle) => symbols.hearth_rdma_close(handle),
    hearth_rdma_link_create: (handle) =>
      symbols.hearth_rdma_link_create(handle, memory.bytes, out.bytes, memory.bytes),
    hearth_rdma_link_connect: (handle) => symbols.hearth_rdma_link_connect(handle, memory.bytes),
    hearth_rdma_lend: (handle) => symbols.hearth_rdma_lend(handle, memory.bytes),
    hearth_rdma_return: (handle) => symbols.hearth_rdma_return(handle, 1),
    hearth_rdma_read: (handle) => symbols.hearth_rdma_read(handle, memory.bytes),
    hearth_rdma_cancel: (handle) => symbols.hearth_rdma_cancel(handle, 1),
    hearth_rdma_arrived: (handle) => symbols.hearth_rdma_arrived(handle, 1, out.bytes),
    hearth_rdma_link_end: (handle) => symbols.hearth_rdma_link_end(handle),
  };
}

/** Exports without a handle, with arguments that make every pointer null. */
const NULL_CALLS: Partial<Record<FunctionName, (number | Uint8Array)[]>> = {
  hearth_abi: [0],
  hearth_abi_echo: [0, 0, 0],
  hearth_region_create: [0, 0],
  hearth_region_map: [0, 0],
  hearth_region_adopt: [0, 0],
  hearth_region_copy_in: [0, 0],
  hearth_region_copy_out: [0, 0],
  hearth_region_mac_in: [0, 0],
  hearth_region_mac_out: [0],
  hearth_region_mac_check: [0],
  hearth_region_checksum: [0, 0],
  hearth_region_fill: [0],
  hearth_region_check: [0, 0],
  hearth_queue_create: [0, 0],
  hearth_disk_create: [0, 0],
  hearth_lanes_create: [0, 0],
  hearth_prefix_create: [0, 0],
  hearth_rdma_create: [0, 0],
  hearth_rdma_direct: [0, 0],
  hearth_gpus_create: [0, 0],
  hearth_plain_listen: [0],
  hearth_plain_pull: [0],
  hearth_records_seal: [0, 0, 1, 0, 1],
  hearth_records_open: [0, 0, 1, 0, 1],
  hearth_file_lock: [0, 1],
  hearth_faults: [0, 1],
  hearth_fault_point: [0, 1],
  hearth_fault_counts: [0, 1],
  hearth_prefix_digests: [0],
  hearth_chain_digests: [0, 0, 32, 1, 0],
  hearth_block_keys: [0, 0, 1, 0],
  hearth_sequence_hashes: [0, 0, 0, 0, 1],
  hearth_key_hashes: [0, 0, 1, 1, 0, 1],
  hearth_blake3: [0, 1, 0],
  hearth_blake3_keyed: [0, 0, 1, 0],
  hearth_blake3_derive_key: [0, 1, 0, 1, 0],
  hearth_xxh3_64: [0, 1, 0],
  hearth_xxh3_128: [0, 1, 0],
  hearth_socket_pair: [0],
  hearth_socket_peer: [-1, 0],
  hearth_socket_peer_groups: [-1, 0, 1],
  hearth_socket_send_fd: [-1, 0, 1, 0],
  hearth_socket_receive_fd: [-1, 0, 1, 0],
  hearth_notify: [0, 1, 0, 1, 0, 0],
  hearth_monotonic_us: [0],
  hearth_thread_cpu_us: [0],
};

/** Exports without arguments that could be stale or null. */
const WITHOUT_POINTERS = [
  "hearth_last_errno",
  "hearth_close_fd",
  "hearth_end_silent",
  "hearth_probe_io_uring",
  "hearth_tune_listener",
  "hearth_tune_udp",
];
/** Exports that take a region's handle, despite their names. */
const OF_REGIONS = /^hearth_(?:region|plain)/;

describeNative("handles", () => {
  test("every export is covered", () => {
    const covered = new Set([
      ...Object.keys(callsWithHandle(loadNative())),
      ...Object.keys(NULL_CALLS),
      ...WITHOUT_POINTERS,
    ]);
    expect([...covered].sort()).toEqual(Object.keys(FUNCTIONS).sort());
  });

  test("null, invented and foreign handles are stale for every export", async () => {
    const native = loadNative();
    using open = region(native);
    const invented = [0, 1, 2, 0xffff, 2 ** 32, 2 ** 52, open.handle + 1, open.handle + 2 ** 16];
    for (const [name, call] of Object.entries(callsWithHandle(native))) {
      for (const handle of invented) {
        expect(`${name} ${call(handle)}`).toBe(`${name} ${STATUS.stale_handle}`);
      }
      if (OF_REGIONS.test(name)) continue;
      expect(call(open.handle)).toBe(STATUS.stale_handle);
    }
    await using queue = new Queue(native, { entries: 8, threads: 1, watches: 1 });
    expect(queue.inFlight).toBe(0);
  });

  test("closed and double-freed region handles are stale for every export", () => {
    const native = loadNative();
    const open = region(native);
    const calls = callsWithHandle(native);
    expect(calls.hearth_region_fill!(open.handle)).toBe(0);
    expect(calls.hearth_region_close!(open.handle)).toBe(0);
    using reused = region(native);
    expect(reused.handle).not.toBe(open.handle);
    for (const [name, call] of Object.entries(calls)) {
      expect(`${name} ${call(open.handle)}`).toBe(`${name} ${STATUS.stale_handle}`);
    }
  });

  test("a closed queue's handle is stale for every export", () => {
    const native = loadNative();
    const request = { entries: 8, threads: 1, watches: 1, reserved: 0 };
    const info = native.exchange("hearth_queue_create", ["QueueRequest", request], "QueueInfo");
    const handle = Number(info.handle);
    expect(native.symbols.hearth_queue_close(handle)).toBe(0);
    for (const [name, call] of Object.entries(callsWithHandle(native))) {
      expect(`${name} ${call(handle)}`).toBe(`${name} ${STATUS.stale_handle}`);
    }
  });

  test("handles of lanes and of their sessions are stale after their end", async () => {
    const native = loadNative();
    const { symbols } = native;
    using arena = region(native);
    const calls = callsWithHandle(native);
    const request = {
      region: BigInt(arena.handle),
      rekey_bytes: 0n,
      threads: 1,
      socket_bytes: 0,
    };
    const info = native.exchange("hearth_lanes_create", ["LanesRequest", request], "LanesInfo");
    const lanes = Number(info.handle);
    const session = nativeBuffer(STRUCTS.LaneSession.size).bytes;
    const view = new DataView(session.buffer);
    view.setUint32(STRUCTS.LaneSession.fields.lanes.offset, 1, true);
    view.setUint32(STRUCTS.LaneSession.fields.timeout_ms.offset, 60_000, true);
    const out = new BigUint64Array(new ArrayBuffer(8));
    const outBytes = new Uint8Array(out.buffer);
    expect(symbols.hearth_lanes_expect(lanes, session, outBytes)).toBe(0);
    const handle = Number(out[0]);
    expect(symbols.hearth_lanes_close(lanes)).toBe(STATUS.busy);
    expect(symbols.hearth_region_close(arena.handle)).toBe(STATUS.busy);
    expect(symbols.hearth_session_begin(handle, session)).toBe(STATUS.closed);
    expect(symbols.hearth_session_end(lanes)).toBe(STATUS.stale_handle);
    expect(symbols.hearth_session_end(handle)).toBe(0);
    expect(symbols.hearth_lanes_close(lanes)).toBe(0);
    for (const [name, call] of Object.entries(calls)) {
      expect(`${name} ${call(handle)}`).toBe(`${name} ${STATUS.stale_handle}`);
      expect(`${name} ${call(lanes)}`).toBe(`${name} ${STATUS.stale_handle}`);
    }
  });

  test("a null pointer gives a status for every export, never a crash", () => {
    const { symbols } = loadNative();
    for (const [name, args] of Object.entries(NULL_CALLS)) {
      const code = symbols[name as FunctionName](...args);
      expect(`${name} ${code}`).toBe(`${name} ${STATUS.null_argument}`);
    }
  });
});
