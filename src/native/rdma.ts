import { assert } from "../core/index.ts";
import {
  RDMA_DIRECT_STEP,
  RDMA_EVENT,
  RDMA_FAULT,
  RDMA_PORT_STATE,
  RDMA_STATE,
  STATUS,
  STRUCTS,
} from "./abi.gen.ts";
import {
  EventReader,
  type NativeBuffer,
  NativeError,
  nativeBuffer,
  readStruct,
  writeStruct,
} from "./memory.ts";
import type { Native } from "./native.ts";
import type { Region } from "./region.ts";

export type RdmaState =
  | "ready"
  | "no_library"
  | "no_device"
  | "memlock"
  | "not_permitted"
  | "too_old"
  | "failed";

export type RdmaPortState = "active" | "down" | "no_address" | "fatal";

/** A NIC port, from which queue pairs are created. */
export interface RdmaPort {
  readonly index: number;
  readonly device: string;
  readonly number: number;
  readonly state: RdmaPortState;
  /** 16 bytes. */
  readonly gid: Uint8Array;
  readonly gidIndex: number;
  readonly isRoceV2: boolean;
  readonly lid: number;
  readonly linkLayer: "infiniband" | "ethernet";
  /** Path MTU in bytes. */
  readonly mtu: number;
  /** Maximum READs in flight that a queue pair may issue and may answer. */
  readonly readsOut: number;
  readonly readsIn: number;
  readonly messageBytesMax: number;
  /** Mbit/s. 0 if unknown. */
  readonly speed: number;
  readonly numaNode: number | null;
  readonly hasRelaxedOrdering: boolean;
  readonly hasDmaBuf: boolean;
}

/** Address of one side of a queue pair, which the other side must know to connect. */
export interface RdmaAddress {
  readonly gid: Uint8Array;
  readonly queuePair: number;
  readonly psn: number;
  readonly lid: number;
  readonly mtu: number;
  readonly readsOut: number;
  readonly readsIn: number;
}

/** Why a queue pair, a lending or a read failed. */
export type RdmaFault = "broken" | "cancelled" | "full" | "unregistered" | "port";

/** Remote address and key of a lent span. */
export interface RdmaWindow {
  readonly address: bigint;
  readonly key: number;
}

export type Lent =
  | { readonly ok: true; readonly window: RdmaWindow }
  | { readonly ok: false; readonly fault: RdmaFault };

export type RdmaRead =
  /** XXH3-64 of the span, computed after its last byte was written. */
  | { readonly ok: true; readonly checksum: bigint }
  | { readonly ok: false; readonly fault: RdmaFault };

export interface RdmaQueuePairSettings {
  /** A packet without an answer is sent again after 4.096 µs * 2^timeout, `retries` times. */
  readonly timeout: number;
  /** 1 to 6. */
  readonly retries: number;
  readonly trafficClass: number;
  readonly serviceLevel: number;
  /** Maximum bytes of one READ. */
  readonly pieceBytes: number;
}

export interface RdmaOptions {
  readonly region: Region;
  /** Path of the verbs library. Null: `libibverbs.so.1` as the dynamic linker finds it. */
  readonly library: string | null;
  /** Names of the devices to use. Null: all. */
  readonly devices: readonly string[] | null;
  /** Null: chosen automatically (RoCE v2 before others, no link-local address). */
  readonly gidIndex: number | null;
  /** Maximum bytes and spans lent at the same time. */
  readonly windowBytes: number;
  readonly windowSpans: number;
  readonly linksMax: number;
  readonly readsMax: number;
  onPort(port: RdmaPort): void;
}

/**
 * The RDMA devices of this host. The verbs library is loaded at run time. Promises:
 *
 * - Without a library, a device, or enough lockable memory, opening succeeds and `state` gives the
 *   reason; `link` then throws NativeError `unsupported`.
 * - Peers can read exactly the lent spans, while they are lent. No peer can write to the region.
 * - The device owns the span of a lending or a read until its promise resolves.
 * - Any error ends the queue pair with everything in flight on it.
 */
export interface Rdma extends AsyncDisposable {
  readonly state: RdmaState;
  /** errno that led to the state, or 0. */
  readonly errno: number;
  /** Current state of the ports. */
  ports(): readonly RdmaPort[];
  /** Creates a queue pair on a port. Throws NativeError: `full`, `unsupported`, `device_failed`. */
  link(port: number, settings: RdmaQueuePairSettings): RdmaQueuePair;
}

/** A queue pair. States: created → connected → ended. */
export interface RdmaQueuePair extends AsyncDisposable {
  /** Address to send to the other side. */
  readonly address: RdmaAddress;
  /** Resolves when the queue pair has ended and nothing accesses the region any more. */
  readonly ended: Promise<RdmaFault>;
  /**
   * Throws NativeError if the address is invalid. Returns without waiting: reads start when the
   * device is ready, and a device that refuses ends the queue pair with `broken`.
   */
  connect(other: RdmaAddress): void;
  /** Lets the other side read the span until `takeBack`. */
  lend(offset: number, bytes: number): { readonly token: number; readonly lent: Promise<Lent> };
  /** Resolves when the other side can no longer read the span. */
  takeBack(token: number): Promise<void>;
  /** Reads a span that the other side lent into the region. */
  read(
    window: RdmaWindow,
    offset: number,
    bytes: number,
  ): { readonly token: number; readonly done: Promise<RdmaRead> };
  /**
   * Issues no further READs for it. `done` resolves with `cancelled` when those in flight have
   * ended.
   */
  cancel(token: number): void;
  /** Bytes of a read that have arrived. 0 if it has ended. */
  arrived(token: number): number;
}

const DONE = STRUCTS.RdmaDone;
const REAP_MAX = 64;
/** Requests the automatic choice of the GID. */
const BY_RULE = 0xffff_ffff;
const ROCE_V2 = 2;
const INFINIBAND = 1;

function namesOf<Name extends string>(numbers: Readonly<Record<Name, number>>): Map<number, Name> {
  return new Map((Object.entries(numbers) as [Name, number][]).map(([name, n]) => [n, name]));
}

const STATES = namesOf<RdmaState>(RDMA_STATE);
const PORT_STATES = namesOf<RdmaPortState>(RDMA_PORT_STATE);
const FAULTS = namesOf<RdmaFault | "none">(RDMA_FAULT);

class NativeRdma implements Rdma {
  readonly state: RdmaState;
  readonly errno: number;
  readonly #native: Native;
  readonly #handle: number;
  readonly #portCount: number;
  readonly #onPort: (port: RdmaPort) => void;
  readonly #answer: NativeBuffer = nativeBuffer(256);
  readonly #done: NativeBuffer = nativeBuffer(DONE.size * REAP_MAX);
  readonly #doneView = new DataView(this.#done.bytes.buffer);
  /** Callbacks by token: of queue pairs, lendings and reads. */
  readonly #waiting = new Map<number, (done: RdmaDone) => "more" | "over">();
  readonly #links = new Set<NativeRdmaLink>();
  readonly #events: EventReader | null;
  /** Keeps the arena alive until reads into it have ended. */
  readonly #region: RdmaOptions["region"];
  #nextToken = 1;
  #closing: Promise<void> | null = null;

  constructor(native: Native, options: RdmaOptions) {
    this.#native = native;
    this.#region = options.region;
    this.#onPort = options.onPort;
    const library = options.library === null ? null : textBuffer([options.library]);
    const devices = options.devices === null ? null : textBuffer(options.devices);
    const request = nativeBuffer(STRUCTS.RdmaRequest.size).bytes;
    writeStruct(
      "RdmaRequest",
      {
        region: BigInt(this.#region.handle),
        library: BigInt(library?.address ?? 0),
        window_bytes: BigInt(options.windowBytes),
        window_spans: options.windowSpans,
        links: options.linksMax,
        reads: options.readsMax,
        devices_bytes: devices?.bytes.length ?? 0,
        devices: BigInt(devices?.address ?? 0),
        gid_index: options.gidIndex ?? BY_RULE,
        reserved: 0,
      },
      request,
    );
    const code = native.symbols.hearth_rdma_create(request, this.#answer.bytes);
    native.check("hearth_rdma_create", code);
    const info = readStruct("RdmaInfo", this.#answer.bytes);
    this.state = STATES.get(info.state)!;
    this.errno = info.errno;
    this.#handle = Number(info.handle);
    this.#portCount = info.ports;
    const isReady = this.state === "ready";
    this.#events = isReady ? new EventReader(info.event_fd, () => this.#drain()) : null;
  }

  ports(): readonly RdmaPort[] {
    if (this.#events === null || this.#closing !== null) return [];
    return Array.from({ length: this.#portCount }, (_, index) => this.#port(index));
  }

  #port(index: number): RdmaPort {
    const out = this.#answer.bytes;
    this.#native.check(
      "hearth_rdma_port",
      this.#native.symbols.hearth_rdma_port(this.#handle, index, out),
    );
    const port = readStruct("RdmaPort", out);
    return {
      index,
      device: textOf(port.device),
      number: port.number,
      state: PORT_STATES.get(port.state)!,
      gid: port.gid,
      gidIndex: port.gid_index,
      isRoceV2: port.gid_type === ROCE_V2,
      lid: port.lid,
      linkLayer: port.link_layer === INFINIBAND ? "infiniband" : "ethernet",
      mtu: port.mtu,
      readsOut: port.reads_out,
      readsIn: port.reads_in,
      messageBytesMax: Number(port.message_bytes_max),
      speed: Number(port.speed),
      numaNode: port.numa_node < 0 ? null : port.numa_node,
      hasRelaxedOrdering: port.has_relaxed_ordering !== 0,
      hasDmaBuf: port.has_dma_buf !== 0,
    };
  }

  link(port: number, settings: RdmaQueuePairSettings): RdmaQueuePair {
    const name = "hearth_rdma_link_create";
    if (this.#events === null) throw new NativeError(name, STATUS.unsupported, this.errno);
    if (this.#closing !== null) throw new NativeError(name, STATUS.closed, 0);
    let made: NativeRdmaLink | undefined;
    const token = this.#wait((done) => {
      assert(made !== undefined, "a queue pair ends after its creation");
      made.handle(done);
      this.#links.delete(made);
      return "over";
    });
    const handle = new BigUint64Array(new ArrayBuffer(8));
    const out = this.#answer.bytes;
    const code = this.#native.symbols.hearth_rdma_link_create(
      this.#handle,
      linkRequest(port, settings, token),
      new Uint8Array(handle.buffer),
      out,
    );
    if (code < 0) this.#waiting.delete(token);
    this.#native.check(name, code);
    made = new NativeRdmaLink(this.#native, Number(handle[0]!), addressFrom(out), {
      wait: (settle) => this.#wait(settle),
      forget: (waiting) => this.#waiting.delete(waiting),
    });
    this.#links.add(made);
    return made;
  }

  #wait(settle: (done: RdmaDone) => "more" | "over"): number {
    const token = this.#nextToken++;
    this.#waiting.set(token, settle);
    return token;
  }

  #drain(): void {
    const reap = this.#native.symbols.hearth_rdma_reap;
    let count: number;
    do {
      const code = reap(this.#handle, this.#done.bytes, REAP_MAX);
      count = this.#native.check("hearth_rdma_reap", code);
      for (let i = 0; i < count; i++) this.#deliver(i * DONE.size);
    } while (count === REAP_MAX);
  }

  #deliver(at: number): void {
    const view = this.#doneView;
    const { fields } = DONE;
    const token = Number(view.getBigUint64(at + fields.token.offset, true));
    const event = view.getUint32(at + fields.event.offset, true);
    if (event === RDMA_EVENT.port) {
      this.#onPort(this.#port(token));
      return;
    }
    const waiting = this.#waiting.get(token);
    assert(waiting !== undefined, "an event has a waiter");
    const outcome = waiting({
      event,
      fault: FAULTS.get(view.getUint32(at + fields.fault.offset, true))!,
      result: view.getBigUint64(at + fields.result.offset, true),
      key: view.getUint32(at + fields.key.offset, true),
    });
    if (outcome === "over") this.#waiting.delete(token);
  }

  [Symbol.asyncDispose](): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    if (this.#events === null) return;
    await Promise.all([...this.#links].map((link) => link[Symbol.asyncDispose]()));
    await this.#events.stop();
    const code = this.#native.symbols.hearth_rdma_close(this.#handle);
    this.#native.check("hearth_rdma_close", code);
  }
}

function linkRequest(port: number, settings: RdmaQueuePairSettings, token: number): Uint8Array {
  const request = nativeBuffer(STRUCTS.RdmaLinkRequest.size).bytes;
  writeStruct(
    "RdmaLinkRequest",
    {
      token: BigInt(token),
      port,
      timeout: settings.timeout,
      retries: settings.retries,
      traffic_class: settings.trafficClass,
      service_level: settings.serviceLevel,
      piece_bytes: settings.pieceBytes,
    },
    request,
  );
  return request;
}

function addressFrom(bytes: Uint8Array): RdmaAddress {
  const address = readStruct("RdmaAddress", bytes);
  return {
    gid: address.gid,
    queuePair: address.queue_pair,
    psn: address.psn,
    lid: address.lid,
    mtu: address.mtu,
    readsOut: address.reads_out,
    readsIn: address.reads_in,
  };
}

/** Zero-terminated strings with another zero byte after the last one. */
function textBuffer(texts: readonly string[]): NativeBuffer {
  const joined = new TextEncoder().encode(`${texts.map((text) => `${text}\0`).join("")}\0`);
  const buffer = nativeBuffer(joined.length);
  buffer.bytes.set(joined);
  return buffer;
}

function textOf(bytes: Uint8Array): string {
  const end = bytes.indexOf(0);
  return new TextDecoder().decode(end < 0 ? bytes : bytes.subarray(0, end));
}

/**
 * Opens the RDMA devices of this host. Throws NativeError if memory or threads are insufficient. A
 * host without devices is not an error.
 */
export function openRdma(native: Native, options: RdmaOptions): Rdma {
  return new NativeRdma(native, options);
}

/** Event of a queue pair, a lending or a read. */
interface RdmaDone {
  /** An `RDMA_EVENT`. */
  readonly event: number;
  readonly fault: RdmaFault | "none";
  readonly result: bigint;
  readonly key: number;
}

/** Registry of the callbacks for events. */
interface RdmaWaits {
  /** Returns a token whose events call `settle` until it returns "over". */
  wait(settle: (done: RdmaDone) => "more" | "over"): number;
  forget(token: number): void;
}

const SPAN = STRUCTS.RdmaSpan;

class NativeRdmaLink implements RdmaQueuePair {
  readonly address: RdmaAddress;
  readonly ended: Promise<RdmaFault>;
  readonly #native: Native;
  readonly #handle: number;
  readonly #waits: RdmaWaits;
  readonly #span = nativeBuffer(SPAN.size).bytes;
  readonly #spanView = new DataView(this.#span.buffer);
  readonly #answer = new BigUint64Array(new ArrayBuffer(8));
  readonly #answerBytes = new Uint8Array(this.#answer.buffer);
  readonly #ending = Promise.withResolvers<RdmaFault>();
  /** Lent spans by token. Each promise resolves once the span is not readable any more. */
  readonly #lent = new Map<number, PromiseWithResolvers<void>>();
  #isNamed = true;

  constructor(native: Native, handle: number, address: RdmaAddress, waits: RdmaWaits) {
    this.#native = native;
    this.#handle = handle;
    this.address = address;
    this.#waits = waits;
    this.ended = this.#ending.promise;
  }

  /** Handles the last event of the queue pair. */
  handle({ fault }: RdmaDone): void {
    assert(fault !== "none", "a queue pair's end has a fault");
    assert(this.#lent.size === 0, "an ended queue pair lends nothing");
    this.#unname();
    this.#ending.resolve(fault);
  }

  connect(other: RdmaAddress): void {
    this.#native.check(
      "hearth_rdma_link_connect",
      this.#isNamed ? this.#connect(other) : STATUS.closed,
    );
  }

  #connect(other: RdmaAddress): number {
    assert(other.gid.length === 16, "a GID has 16 bytes");
    const address = nativeBuffer(STRUCTS.RdmaAddress.size).bytes;
    writeStruct(
      "RdmaAddress",
      {
        gid: other.gid,
        queue_pair: other.queuePair,
        psn: other.psn,
        lid: other.lid,
        mtu: other.mtu,
        reads_out: other.readsOut,
        reads_in: other.readsIn,
      },
      address,
    );
    return this.#native.symbols.hearth_rdma_link_connect(this.#handle, address);
  }

  lend(offset: number, bytes: number): { readonly token: number; readonly lent: Promise<Lent> } {
    const { promise, resolve } = Promise.withResolvers<Lent>();
    const lending = Promise.withResolvers<void>();
    const token = this.#waits.wait((done) => {
      if (done.event === RDMA_EVENT.lent && done.fault === "none") {
        resolve({ ok: true, window: { address: done.result, key: done.key } });
        return "more";
      }
      this.#lent.delete(token);
      lending.resolve();
      if (done.fault !== "none") resolve({ ok: false, fault: done.fault });
      return "over";
    });
    const { hearth_rdma_lend: call } = this.#native.symbols;
    const refused = this.#submit("hearth_rdma_lend", call, token, offset, bytes, null);
    if (refused === null) this.#lent.set(token, lending);
    else void refused.then((fault) => resolve({ ok: false, fault }));
    return { token, lent: promise };
  }

  takeBack(token: number): Promise<void> {
    const lending = this.#lent.get(token);
    if (lending === undefined) return Promise.resolve();
    if (this.#isNamed) {
      const code = this.#native.symbols.hearth_rdma_return(this.#handle, token);
      this.#native.check("hearth_rdma_return", code);
    }
    return lending.promise;
  }

  read(
    window: RdmaWindow,
    offset: number,
    bytes: number,
  ): { readonly token: number; readonly done: Promise<RdmaRead> } {
    const { promise, resolve } = Promise.withResolvers<RdmaRead>();
    const token = this.#waits.wait(({ fault, result }) => {
      resolve(fault === "none" ? { ok: true, checksum: result } : { ok: false, fault });
      return "over";
    });
    const { hearth_rdma_read: call } = this.#native.symbols;
    const refused = this.#submit("hearth_rdma_read", call, token, offset, bytes, window);
    void refused?.then((fault) => resolve({ ok: false, fault }));
    return { token, done: promise };
  }

  /**
   * Null if events will follow. Otherwise the fault, which may be known only when the queue pair
   * ends.
   */
  #submit(
    name: string,
    call: (link: number, span: Uint8Array) => number,
    token: number,
    offset: number,
    bytes: number,
    window: RdmaWindow | null,
  ): Promise<RdmaFault> | null {
    const { fields } = SPAN;
    const view = this.#spanView;
    view.setBigUint64(fields.token.offset, BigInt(token), true);
    view.setBigUint64(fields.offset.offset, BigInt(offset), true);
    view.setBigUint64(fields.bytes.offset, BigInt(bytes), true);
    view.setBigUint64(fields.address.offset, window?.address ?? 0n, true);
    view.setUint32(fields.key.offset, window?.key ?? 0, true);
    const code = this.#isNamed ? call(this.#handle, this.#span) : STATUS.closed;
    if (code >= 0) return null;
    this.#waits.forget(token);
    if (code === STATUS.full) return Promise.resolve("full");
    if (code !== STATUS.closed) this.#native.check(name, code);
    return this.ended;
  }

  cancel(token: number): void {
    if (!this.#isNamed) return;
    const code = this.#native.symbols.hearth_rdma_cancel(this.#handle, token);
    this.#native.check("hearth_rdma_cancel", code);
  }

  arrived(token: number): number {
    if (!this.#isNamed) return 0;
    const code = this.#native.symbols.hearth_rdma_arrived(this.#handle, token, this.#answerBytes);
    this.#native.check("hearth_rdma_arrived", code);
    return Number(this.#answer[0]!);
  }

  #unname(): void {
    if (!this.#isNamed) return;
    this.#isNamed = false;
    const code = this.#native.symbols.hearth_rdma_link_end(this.#handle);
    this.#native.check("hearth_rdma_link_end", code);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#unname();
    await this.ended;
  }
}

/**
 * The step at which a NIC failed to write to GPU memory. `works` means that every step passed on
 * the NIC's side.
 */
export type DirectStep = keyof typeof RDMA_DIRECT_STEP;

export interface DirectTrial {
  readonly region: Region;
  /** Span of the region to read from. */
  readonly offset: number;
  readonly bytes: number;
  /** Null: libibverbs as the dynamic linker finds it. */
  readonly library: string | null;
  readonly port: Pick<RdmaPort, "device" | "number" | "gidIndex">;
  /** A buffer exported by the GPU's driver. The caller keeps ownership. */
  readonly fd: number;
  /** Offset in the buffer. */
  readonly bufferOffset: number;
}

export interface DirectOutcome {
  readonly step: DirectStep;
  /** errno or completion status of the failure. 0 if unknown. */
  readonly code: number;
}

const STEPS = Object.entries(RDMA_DIRECT_STEP) as [DirectStep, number][];
const NAME_BYTES = 64;

/**
 * Tests whether a NIC can read from the region into GPU memory, over a connection to itself. Blocks
 * for milliseconds, at most 3 s: for use at start and by the doctor. Throws NativeError if the span
 * is invalid.
 */
export function tryDirect(native: Native, trial: DirectTrial): DirectOutcome {
  const { region, offset, bytes, port, fd, bufferOffset } = trial;
  const path = new TextEncoder().encode(`${trial.library ?? ""}\0`);
  const library = nativeBuffer(path.length);
  library.bytes.set(path);
  const device = new Uint8Array(NAME_BYTES);
  device.set(new TextEncoder().encode(port.device));
  const request = nativeBuffer(STRUCTS.RdmaDirectRequest.size).bytes;
  writeStruct(
    "RdmaDirectRequest",
    {
      region: BigInt(region.handle),
      offset: BigInt(offset),
      bytes: BigInt(bytes),
      library: BigInt(trial.library === null ? 0 : library.address),
      device,
      buffer_offset: BigInt(bufferOffset),
      fd,
      port: port.number,
      gid_index: port.gidIndex,
      reserved: 0,
    },
    request,
  );
  const answer = nativeBuffer(STRUCTS.RdmaDirect.size).bytes;
  native.check("hearth_rdma_direct", native.symbols.hearth_rdma_direct(request, answer));
  // Keeps the path alive until the library has read it.
  assert(library.address !== 0, "the path has an address");
  const { step, code } = readStruct("RdmaDirect", answer);
  const found = STEPS.find(([, number]) => number === step);
  assert(found !== undefined, "a trial ends at a named step");
  return { step: found[0], code };
}
