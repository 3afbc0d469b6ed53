import { equalBytes } from "../../../src/core/index.ts";
import {
  type LaneFault,
  type LaneSession,
  type Lanes,
  type NativeBuffer,
  NativeError,
  nativeBuffer,
  type OpenLaneSession,
  type Received,
  type Region,
  type Sent,
  STATUS,
} from "../../../src/native/index.ts";

const SLICE_BYTES = 64 * 1024;

interface Receive {
  readonly offset: number;
  readonly bytes: number;
  arrived: number;
  readonly settle: (received: Received) => void;
}

interface Expected {
  readonly session: LaneSession;
  readonly settle: (connection: PlainLink) => void;
}

/**
 * Lanes between regions of one process, without sockets, for faults that real lanes do not have on
 * demand.
 */
export class PlainNetwork {
  readonly ports = new Map<number, PlainLanes>();
  readonly connections: PlainLink[] = [];
  /** Called before each slice that is sent. */
  onSlice: () => Promise<void> = () => new Promise((resolve) => setImmediate(resolve));
  /** The next this many transfers find no free transfer at their receiver. */
  full = 0;
  /** Number of announced transfers so far. */
  received = 0;
  /** Sessions that were dialled. */
  readonly sessions: LaneSession[] = [];

  open(region: Region): Lanes {
    return new PlainLanes(this, region);
  }
}

class PlainLanes implements Lanes {
  readonly network: PlainNetwork;
  readonly region: Region;
  readonly expected: Expected[] = [];
  readonly #connections: PlainLink[] = [];
  #port = 0;

  constructor(network: PlainNetwork, region: Region) {
    this.network = network;
    this.region = region;
  }

  listen(_host: string, port: number): number {
    this.#port = port === 0 ? 10_000 + this.network.ports.size : port;
    this.network.ports.set(this.#port, this);
    return this.#port;
  }

  expect(session: LaneSession): Promise<OpenLaneSession> {
    return new Promise((settle) => this.expected.push({ session, settle }));
  }

  async dial(session: LaneSession, _host: string, port: number): Promise<OpenLaneSession> {
    this.network.sessions.push(session);
    const there = this.network.ports.get(port);
    const expected = there?.expected.find((one) => equalBytes(one.session.id, session.id));
    if (there === undefined || expected === undefined) throw new Error("no listener");
    if (!equalBytes(expected.session.secret, session.secret)) throw new Error("another secret");
    const [sender, receiver] = [new PlainLink(there), new PlainLink(this)];
    sender.other = receiver;
    receiver.other = sender;
    there.#connections.push(sender);
    this.#connections.push(receiver);
    this.network.connections.push(sender, receiver);
    expected.settle(sender);
    return receiver;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.network.ports.delete(this.#port);
    for (const connection of this.#connections) connection.end("closed");
  }
}

export class PlainLink implements OpenLaneSession {
  other: PlainLink | null = null;
  readonly ended: Promise<LaneFault>;
  readonly #lanes: PlainLanes;
  readonly #buffer: NativeBuffer = nativeBuffer(SLICE_BYTES);
  readonly #receives = new Map<number, Receive>();
  readonly #cancelled = new Set<number>();
  readonly #sending = new Set<number>();
  #fault: LaneFault | null = null;
  #onEnd!: (fault: LaneFault) => void;

  constructor(lanes: PlainLanes) {
    this.#lanes = lanes;
    this.ended = new Promise((resolve) => {
      this.#onEnd = resolve;
    });
  }

  /** Announced transfers that are not over. */
  get announced(): number {
    return this.#receives.size;
  }

  async send(transfer: number, offset: number, bytes: number): Promise<Sent> {
    if (this.#sending.has(transfer)) {
      throw new NativeError("hearth_session_begin", STATUS.exists, 0);
    }
    this.#sending.add(transfer);
    try {
      return await this.#send(transfer, offset, bytes);
    } finally {
      this.#sending.delete(transfer);
    }
  }

  async #send(transfer: number, offset: number, bytes: number): Promise<Sent> {
    for (let at = 0; at < bytes; at += SLICE_BYTES) {
      await this.#lanes.network.onSlice();
      if (this.#fault !== null) return { ok: false, fault: this.#fault };
      if (this.#cancelled.has(transfer)) return { ok: false, fault: "cancelled" };
      const slice = Math.min(SLICE_BYTES, bytes - at);
      this.#lanes.region.copyOut(offset + at, this.#buffer, slice, false);
      this.other?.take(transfer, at, this.#buffer, slice);
    }
    return { ok: true };
  }

  take(transfer: number, at: number, from: NativeBuffer, bytes: number): void {
    const receive = this.#receives.get(transfer);
    if (receive === undefined) return;
    const { region } = this.#lanes;
    if (at + bytes > receive.bytes) {
      this.end("too_long");
      return;
    }
    region.copyIn(receive.offset + at, from, bytes, false);
    receive.arrived += bytes;
    if (receive.arrived < receive.bytes) return;
    this.#receives.delete(transfer);
    receive.settle({ ok: true, checksum: region.checksum(receive.offset, receive.bytes) });
  }

  async receive(transfer: number, offset: number, bytes: number): Promise<Received> {
    this.#lanes.network.received++;
    if (this.#fault !== null) return { ok: false, fault: this.#fault };
    if (this.#lanes.network.full > 0) {
      this.#lanes.network.full--;
      return { ok: false, fault: "full" };
    }
    return new Promise((settle) => {
      this.#receives.set(transfer, { offset, bytes, arrived: 0, settle });
    });
  }

  arrived(transfer: number): number {
    return this.#receives.get(transfer)?.arrived ?? 0;
  }

  cancel(transfer: number): void {
    this.#cancelled.add(transfer);
    const receive = this.#receives.get(transfer);
    this.#receives.delete(transfer);
    receive?.settle({ ok: false, fault: "cancelled" });
  }

  end(fault: LaneFault): void {
    if (this.#fault !== null) return;
    this.#fault = fault;
    for (const { settle } of this.#receives.values()) settle({ ok: false, fault });
    this.#receives.clear();
    this.other?.end("broken");
    this.#onEnd(fault);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.end("closed");
  }
}
