import { assert } from "../core/index.ts";
import { RDMA_EVENT, RDMA_FAULT, RDMA_PORT_STATE, RDMA_STATE, STATUS, STRUCTS } from "./abi.gen.ts";
import { type NativeBuffer, nativeBuffer } from "./buffers.ts";
import { EventReader } from "./event-reader.ts";
import { readStruct, writeStruct } from "./layout.ts";
import type { Native } from "./native.ts";
import type {
  Rdma,
  RdmaAddress,
  RdmaFault,
  RdmaLink,
  RdmaLinkSettings,
  RdmaOptions,
  RdmaPort,
  RdmaPortState,
  RdmaState,
} from "./rdma.ts";
import { NativeRdmaLink, type RdmaDone } from "./rdma-link.ts";
import { NativeError } from "./status.ts";

const DONE = STRUCTS.RdmaDone;
const REAP_MAX = 64;
/** Lets the rule choose the GID. */
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
  /** Who waits for events with a token: links, loans and reads. */
  readonly #waiting = new Map<number, (done: RdmaDone) => "more" | "over">();
  readonly #links = new Set<NativeRdmaLink>();
  readonly #events: EventReader | null;
  /** The arena cannot go before what reads into it. */
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

  link(port: number, settings: RdmaLinkSettings): RdmaLink {
    const name = "hearth_rdma_link_create";
    if (this.#events === null) throw new NativeError(name, STATUS.unsupported, this.errno);
    if (this.#closing !== null) throw new NativeError(name, STATUS.closed, 0);
    let made: NativeRdmaLink | undefined;
    const token = this.#wait((done) => {
      assert(made !== undefined, "a link's end comes after its beginning");
      made.tell(done);
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
    assert(waiting !== undefined, "an event has somebody waiting");
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

function linkRequest(port: number, settings: RdmaLinkSettings, token: number): Uint8Array {
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

/** Texts with a zero byte behind each and another behind the last. */
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
 * Opens the RDMA devices of this host. Throws NativeError where the host has neither memory nor
 * threads for them; a host without devices is no error.
 */
export function openRdma(native: Native, options: RdmaOptions): Rdma {
  return new NativeRdma(native, options);
}
