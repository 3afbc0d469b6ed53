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
import { Completions } from "./completions.ts";
import {
  type NativeBuffer,
  NativeError,
  namesOf,
  nativeBuffer,
  readStruct,
  structOf,
  textBuffer,
  textOf,
} from "./memory.ts";
import type { Native } from "./native.ts";
import type { Region } from "./region.ts";

export type RdmaState = keyof typeof RDMA_STATE;
export type RdmaPortState = keyof typeof RDMA_PORT_STATE;

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
export type RdmaFault = Exclude<keyof typeof RDMA_FAULT, "none">;

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
/** Requests the automatic choice of the GID. */
const BY_RULE = 0xffff_ffff;
const ROCE_V2 = 2;
const INFINIBAND = 1;

const STATES = namesOf(RDMA_STATE);
const PORT_STATES = namesOf(RDMA_PORT_STATE);
const FAULTS = namesOf(RDMA_FAULT);

class NativeRdma implements Rdma {
  readonly state: RdmaState;
  readonly errno: number;
  readonly #native: Native;
  readonly #handle: number;
  readonly #portCount: number;
  readonly #onPort: (port: RdmaPort) => void;
  readonly #answer: NativeBuffer = nativeBuffer(256);
  readonly #links = new Set<NativeRdmaLink>();
  readonly #running: RdmaWaits | null;
  /** Keeps the arena alive until reads into it have ended. */
  readonly #region: RdmaOptions["region"];
  #closing: Promise<void> | null = null;

  constructor(native: Native, options: RdmaOptions) {
    this.#native = native;
    this.#region = options.region;
    this.#onPort = options.onPort;
    const library = options.library === null ? null : textBuffer(options.library);
    // An empty text ends the list.
    const devices = options.devices === null ? null : textBuffer(...options.devices, "");
    const info = native.exchange(
      "hearth_rdma_create",
      [
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
      ],
      "RdmaInfo",
    );
    // Keeps the texts alive until the library has read them.
    assert(library?.address !== 0 && devices?.address !== 0, "texts have addresses");
    this.state = STATES.get(info.state)!;
    this.errno = info.errno;
    this.#handle = Number(info.handle);
    this.#portCount = info.ports;
    this.#running =
      this.state === "ready"
        ? new Completions(native, {
            reap: "hearth_rdma_reap",
            handle: this.#handle,
            entryBytes: DONE.size,
            eventFd: info.event_fd,
            deliver: (view, at) => this.#deliver(view, at),
          })
        : null;
  }

  ports(): readonly RdmaPort[] {
    if (this.#running === null || this.#closing !== null) return [];
    return Array.from({ length: this.#portCount }, (_, index) => this.#port(index));
  }

  #port(index: number): RdmaPort {
    const out = this.#answer.bytes;
    this.#native.call("hearth_rdma_port", this.#handle, index, out);
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
    const running = this.#running;
    if (running === null) throw new NativeError(name, STATUS.unsupported, this.errno);
    if (this.#closing !== null) throw new NativeError(name, STATUS.closed, 0);
    let made: NativeRdmaLink | undefined;
    const token = running.wait((done) => {
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
    if (code < 0) running.forget(token);
    this.#native.check(name, code);
    made = new NativeRdmaLink(this.#native, Number(handle[0]!), addressFrom(out), running);
    this.#links.add(made);
    return made;
  }

  #deliver(view: DataView, at: number): void {
    const { fields } = DONE;
    const token = Number(view.getBigUint64(at + fields.token.offset, true));
    const event = view.getUint32(at + fields.event.offset, true);
    if (event === RDMA_EVENT.port) {
      this.#onPort(this.#port(token));
      return;
    }
    const waiting = this.#running!.of(token);
    const outcome = waiting({
      event,
      fault: FAULTS.get(view.getUint32(at + fields.fault.offset, true))!,
      result: view.getBigUint64(at + fields.result.offset, true),
      key: view.getUint32(at + fields.key.offset, true),
    });
    if (outcome === "over") this.#running!.forget(token);
  }

  [Symbol.asyncDispose](): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    if (this.#running === null) return;
    await Promise.all([...this.#links].map((link) => link[Symbol.asyncDispose]()));
    await this.#running.stop();
    this.#native.call("hearth_rdma_close", this.#handle);
  }
}

function linkRequest(port: number, settings: RdmaQueuePairSettings, token: number): Uint8Array {
  return structOf("RdmaLinkRequest", {
    token: BigInt(token),
    port,
    timeout: settings.timeout,
    retries: settings.retries,
    traffic_class: settings.trafficClass,
    service_level: settings.serviceLevel,
    piece_bytes: settings.pieceBytes,
  });
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

/** Callbacks of queue pairs, lendings and reads; each is called until it returns "over". */
type RdmaWaits = Completions<(done: RdmaDone) => "more" | "over">;

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
    const address = structOf("RdmaAddress", {
      gid: other.gid,
      queue_pair: other.queuePair,
      psn: other.psn,
      lid: other.lid,
      mtu: other.mtu,
      reads_out: other.readsOut,
      reads_in: other.readsIn,
    });
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
      this.#native.call("hearth_rdma_return", this.#handle, token);
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
    this.#native.call("hearth_rdma_cancel", this.#handle, token);
  }

  arrived(token: number): number {
    if (!this.#isNamed) return 0;
    this.#native.call("hearth_rdma_arrived", this.#handle, token, this.#answerBytes);
    return Number(this.#answer[0]!);
  }

  #unname(): void {
    if (!this.#isNamed) return;
    this.#isNamed = false;
    this.#native.call("hearth_rdma_link_end", this.#handle);
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

const STEPS = namesOf(RDMA_DIRECT_STEP);
const NAME_BYTES = 64;

/**
 * Tests whether a NIC can read from the region into GPU memory, over a connection to itself. Blocks
 * for milliseconds, at most 3 s: for use at start and by the doctor. Throws NativeError if the span
 * is invalid.
 */
export function tryDirect(native: Native, trial: DirectTrial): DirectOutcome {
  const { region, offset, bytes, port, fd, bufferOffset } = trial;
  const library = textBuffer(trial.library ?? "");
  const device = new Uint8Array(NAME_BYTES);
  device.set(new TextEncoder().encode(port.device));
  const { step, code } = native.exchange(
    "hearth_rdma_direct",
    [
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
    ],
    "RdmaDirect",
  );
  // Keeps the path alive until the library has read it.
  assert(library.address !== 0, "the path has an address");
  const name = STEPS.get(step);
  assert(name !== undefined, "a trial ends at a named step");
  return { step: name, code };
}
