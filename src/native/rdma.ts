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

/** A port of an RDMA NIC. */
export interface RdmaPort {
  readonly index: number;
  readonly device: string;
  readonly number: number;
  readonly state: RdmaPortState;
  /** GID (network address) of the port: 16 bytes. */
  readonly gid: Uint8Array;
  readonly gidIndex: number;
  readonly isRoceV2: boolean;
  readonly lid: number;
  readonly linkLayer: "infiniband" | "ethernet";
  /** Path MTU of the port in bytes. */
  readonly mtu: number;
  /**
   * Maximum number of RDMA READs in flight that a queue pair may issue (`readsOut`) and serve
   * (`readsIn`).
   */
  readonly readsOut: number;
  readonly readsIn: number;
  readonly messageBytesMax: number;
  /** Speed in Mbit/s. 0 if unknown. */
  readonly speed: number;
  readonly numaNode: number | null;
  readonly hasRelaxedOrdering: boolean;
  readonly hasDmaBuf: boolean;
}

/** Address of one end of a queue pair. The other end needs it to connect. */
export interface RdmaAddress {
  readonly gid: Uint8Array;
  readonly queuePair: number;
  readonly psn: number;
  readonly lid: number;
  readonly mtu: number;
  readonly readsOut: number;
  readonly readsIn: number;
}

/** Reasons why a queue pair, an exposed span or a read failed. */
export type RdmaFault = Exclude<keyof typeof RDMA_FAULT, "none">;

/** Address and key with which the other host can read an exposed span. */
export interface RdmaWindow {
  readonly address: bigint;
  readonly key: number;
}

export type Lent =
  | { readonly ok: true; readonly window: RdmaWindow }
  | { readonly ok: false; readonly fault: RdmaFault };

export type RdmaRead =
  /** XXH3-64 of the destination span, computed after its last byte was written. */
  | { readonly ok: true; readonly checksum: bigint }
  | { readonly ok: false; readonly fault: RdmaFault };

export interface RdmaQueuePairSettings {
  /**
   * Timeout exponent: the NIC resends an unacknowledged packet after 4.096 µs * 2^timeout, at most
   * `retries` times.
   */
  readonly timeout: number;
  /** Maximum number of resends: 1 to 6. */
  readonly retries: number;
  readonly trafficClass: number;
  readonly serviceLevel: number;
  /** Maximum bytes of one RDMA READ; longer reads are split. */
  readonly pieceBytes: number;
}

export interface RdmaOptions {
  readonly region: Region;
  /** Path of the verbs library. Null: `libibverbs.so.1` as the dynamic linker finds it. */
  readonly library: string | null;
  /** Names of the RDMA devices to use. Null uses all. */
  readonly devices: readonly string[] | null;
  /** Index of the GID to use. Null: chosen automatically (RoCE v2 first, no link-local address). */
  readonly gidIndex: number | null;
  /** Maximum bytes, and maximum number of spans, that peers may read at the same time. */
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
 * - Peers can read exactly the spans exposed with `lend`, until `takeBack`. No peer can write to
 *   the region.
 * - The device may access a span until the promise of its `takeBack` or read resolves.
 * - Any error ends the queue pair and everything in flight on it.
 */
export interface Rdma extends AsyncDisposable {
  readonly state: RdmaState;
  /** errno of the call that led to `state`. 0 if no call failed. */
  readonly errno: number;
  /** Returns the current state of all ports. */
  ports(): readonly RdmaPort[];
  /**
   * Creates a queue pair on the port with this index. Throws NativeError: `full`, `unsupported`,
   * `device_failed`.
   */
  link(port: number, settings: RdmaQueuePairSettings): RdmaQueuePair;
}

/** A queue pair (RDMA connection). States: created → connected → ended. */
export interface RdmaQueuePair extends AsyncDisposable {
  /** Address of this end, to be sent to the other host. */
  readonly address: RdmaAddress;
  /**
   * Resolves when the queue pair has ended and the device does not access the region through it any
   * more.
   */
  readonly ended: Promise<RdmaFault>;
  /**
   * Connects to the other host's queue pair without waiting. Reads start when the device is ready;
   * if the device refuses, the queue pair ends with `broken`. Throws NativeError if the address is
   * invalid.
   */
  connect(other: RdmaAddress): void;
  /**
   * Lets the other host read a span of the region until `takeBack`. `lent` resolves with the
   * address and key to send to the other host.
   */
  lend(offset: number, bytes: number): { readonly token: number; readonly lent: Promise<Lent> };
  /** Ends the other host's access to a span. Resolves when it cannot read the span any more. */
  takeBack(token: number): Promise<void>;
  /** Reads a span that the other host exposed with `lend` into this host's region. */
  read(
    window: RdmaWindow,
    offset: number,
    bytes: number,
  ): { readonly token: number; readonly done: Promise<RdmaRead> };
  /**
   * Cancels a read: issues no further RDMA READs for it. `done` resolves with `cancelled` when
   * those in flight have ended.
   */
  cancel(token: number): void;
  /** Returns how many bytes of a read have arrived. 0 if the read has ended. */
  arrived(token: number): number;
}

const DONE = STRUCTS.RdmaDone;
/** Value of `gidIndex` that lets the library choose the GID. */
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
  /** Keeps the region referenced until reads into it have ended. */
  readonly #region: RdmaOptions["region"];
  #closing: Promise<void> | null = null;

  constructor(native: Native, options: RdmaOptions) {
    this.#native = native;
    this.#region = options.region;
    this.#onPort = options.onPort;
    const library = options.library === null ? null : textBuffer(options.library);
    // An empty name marks the end of the list.
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
    // Keeps the texts referenced until the library has read them.
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
    made = new NativeRdmaLink(this.#native, Number(handle[0]), addressFrom(out), running);
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
 * Opens the RDMA devices of this host. A host without devices is not an error. Throws NativeError
 * if memory or threads are insufficient.
 */
export function openRdma(native: Native, options: RdmaOptions): Rdma {
  return new NativeRdma(native, options);
}

/** An event of a queue pair, an exposed span or a read. */
interface RdmaDone {
  /** Kind of event: a value of `RDMA_EVENT`. */
  readonly event: number;
  readonly fault: RdmaFault | "none";
  readonly result: bigint;
  readonly key: number;
}

/**
 * Callbacks of queue pairs, exposed spans and reads. Each is called for its events until it returns
 * "over".
 */
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
  /**
   * Exposed spans by token. Each promise resolves when the other host cannot read the span any
   * more.
   */
  readonly #lent = new Map<number, PromiseWithResolvers<void>>();
  #isNamed = true;

  constructor(native: Native, handle: number, address: RdmaAddress, waits: RdmaWaits) {
    this.#native = native;
    this.#handle = handle;
    this.address = address;
    this.#waits = waits;
    this.ended = this.#ending.promise;
  }

  /** Handles the end of the queue pair. */
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
   * Passes a request to the library. Returns null if it was accepted, so that events will follow;
   * otherwise a promise of the fault. If the queue pair is ending, the promise resolves when it has
   * ended.
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
    return Number(this.#answer[0]);
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
 * Step of the test at which a NIC failed to write to GPU memory. `works` means that no step failed
 * on the NIC.
 */
export type DirectStep = keyof typeof RDMA_DIRECT_STEP;

export interface DirectTrial {
  readonly region: Region;
  /** Byte offset in the region of the data that the NIC reads. */
  readonly offset: number;
  readonly bytes: number;
  /** Path of the verbs library. Null: libibverbs as the dynamic linker finds it. */
  readonly library: string | null;
  readonly port: Pick<RdmaPort, "device" | "number" | "gidIndex">;
  /** Descriptor of GPU memory exported as a DMA-BUF. The caller keeps ownership. */
  readonly fd: number;
  /** Byte offset in the GPU memory to which the NIC writes. */
  readonly bufferOffset: number;
}

export interface DirectOutcome {
  readonly step: DirectStep;
  /** errno, or work completion status, of the failed step. 0 if unknown. */
  readonly code: number;
}

const STEPS = namesOf(RDMA_DIRECT_STEP);
const NAME_BYTES = 64;

/**
 * Tests whether a NIC can write data from the region to GPU memory, over a queue pair connected to
 * itself. Blocks the thread for milliseconds, at most 3 s. Used at start and by `hearth doctor`.
 * Throws NativeError if the span is invalid.
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
  // Keeps the path referenced until the library has read it.
  assert(library.address !== 0, "the path has an address");
  const name = STEPS.get(step);
  assert(name !== undefined, "a trial ends at a named step");
  return { step: name, code };
}
