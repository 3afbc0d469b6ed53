import { lookup } from "node:dns/promises";
import { isIP } from "node:net";
import { assert } from "../core/index.ts";
import { LANE_CIPHER, LANE_EVENT, LANE_FAULT, STATUS, STRUCTS } from "./abi.gen.ts";
import { type NativeBuffer, nativeBuffer } from "./buffers.ts";
import { EventReader } from "./event-reader.ts";
import { type LaneDone, NativeLaneLink } from "./lane-link.ts";
import {
  type Cipher,
  LaneError,
  type LaneFault,
  type LaneLink,
  type LaneSession,
  type Lanes,
  type LanesOptions,
} from "./lanes.ts";
import { writeStruct } from "./layout.ts";
import type { Native } from "./native.ts";
import { NativeError } from "./status.ts";

const DONE = STRUCTS.LaneDone;
const REAP_MAX = 64;
const HOST_BYTES = 64;

const CIPHER_NUMBERS: Record<Cipher, number> = {
  "aegis-128l": LANE_CIPHER.aegis_128l,
  "aes-128-gcm": LANE_CIPHER.aes_128_gcm,
  none: LANE_CIPHER.none,
};

const FAULTS = new Map<number, LaneFault | "none">(
  (Object.entries(LANE_FAULT) as [LaneFault | "none", number][]).map(([name, n]) => [n, name]),
);

class NativeLanes implements Lanes {
  readonly #native: Native;
  readonly #handle: number;
  readonly #done: NativeBuffer = nativeBuffer(DONE.size * REAP_MAX);
  readonly #doneView = new DataView(this.#done.bytes.buffer);
  /** Who waits for the completion with a token: a session's link or one of its transfers. */
  readonly #waiting = new Map<number, (done: LaneDone) => void>();
  readonly #links = new Set<NativeLaneLink>();
  readonly #events: EventReader;
  /** The arena cannot go before the lanes. */
  readonly #region: LanesOptions["region"];
  #nextToken = 1;
  #closing: Promise<void> | null = null;

  constructor(native: Native, options: LanesOptions) {
    this.#native = native;
    this.#region = options.region;
    const request = {
      region: BigInt(this.#region.handle),
      rekey_bytes: BigInt(options.rekeyBytes ?? 0),
      threads: options.threads,
      socket_bytes: options.socketBytes,
    };
    const info = native.exchange("hearth_lanes_create", ["LanesRequest", request], "LanesInfo");
    this.#handle = Number(info.handle);
    this.#events = new EventReader(info.event_fd, () => this.#drain());
  }

  listen(host: string, port: number): number {
    this.#assertOpen("hearth_lanes_listen");
    const code = this.#native.symbols.hearth_lanes_listen(this.#handle, addressOf(host, port));
    return this.#native.check("hearth_lanes_listen", code);
  }

  async expect(session: LaneSession, expireMs: number): Promise<LaneLink> {
    return this.#open(session, expireMs, "sent", (request, out) =>
      this.#native.symbols.hearth_lanes_expect(this.#handle, request, out),
    );
  }

  async dial(
    session: LaneSession,
    host: string,
    port: number,
    timeoutMs: number,
  ): Promise<LaneLink> {
    const address = addressOf(await resolve(host), port);
    return this.#open(session, timeoutMs, "received", (request, out) =>
      this.#native.symbols.hearth_lanes_dial(this.#handle, request, address, out),
    );
  }

  #assertOpen(call: string): void {
    if (this.#closing !== null) throw new NativeError(call, STATUS.closed, 0);
  }

  async #open(
    session: LaneSession,
    timeoutMs: number,
    part: "sent" | "received",
    call: (request: Uint8Array, out: Uint8Array) => number,
  ): Promise<LaneLink> {
    if (this.#closing !== null) throw new LaneError("closed");
    const token = this.#takeToken();
    const request = sessionRequest(session, timeoutMs, token);
    const out = new BigUint64Array(new ArrayBuffer(8));
    const code = call(request, new Uint8Array(out.buffer));
    request.fill(0);
    if (code === STATUS.full) throw new LaneError("full");
    this.#native.check("hearth_lanes_open", code);
    const link = new NativeLaneLink(this.#native, Number(out[0]!), part, {
      wait: (settle) => {
        const transfer = this.#takeToken();
        this.#waiting.set(transfer, settle);
        return transfer;
      },
      forget: (transfer) => this.#waiting.delete(transfer),
    });
    this.#links.add(link);
    this.#waiting.set(token, (done) => link.tell(done));
    void link.ended.then(() => {
      this.#waiting.delete(token);
      this.#links.delete(link);
    });
    await link.opened();
    return link;
  }

  #takeToken(): number {
    return this.#nextToken++;
  }

  #drain(): void {
    const reap = this.#native.symbols.hearth_lanes_reap;
    let count: number;
    do {
      const code = reap(this.#handle, this.#done.bytes, REAP_MAX);
      count = this.#native.check("hearth_lanes_reap", code);
      for (let i = 0; i < count; i++) this.#deliver(i * DONE.size);
    } while (count === REAP_MAX);
  }

  #deliver(at: number): void {
    const view = this.#doneView;
    const { fields } = DONE;
    const token = Number(view.getBigUint64(at + fields.token.offset, true));
    const event = view.getUint32(at + fields.event.offset, true);
    const waiting = this.#waiting.get(token);
    assert(waiting !== undefined, "a completion has somebody waiting");
    if (event !== LANE_EVENT.opened) this.#waiting.delete(token);
    waiting({
      event,
      fault: FAULTS.get(view.getUint32(at + fields.fault.offset, true))!,
      checksum: view.getBigUint64(at + fields.checksum.offset, true),
    });
  }

  [Symbol.asyncDispose](): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    await Promise.all([...this.#links].map((link) => link[Symbol.asyncDispose]()));
    await this.#events.stop();
    const code = this.#native.symbols.hearth_lanes_close(this.#handle);
    this.#native.check("hearth_lanes_close", code);
  }
}

function sessionRequest(session: LaneSession, timeoutMs: number, token: number): Uint8Array {
  assert(session.id.length === 16 && session.secret.length === 32, "a session's id and secret");
  const request = nativeBuffer(STRUCTS.LaneSession.size).bytes;
  writeStruct(
    "LaneSession",
    {
      token: BigInt(token),
      id: session.id,
      secret: session.secret,
      cipher: CIPHER_NUMBERS[session.cipher],
      lanes: session.lanes,
      timeout_ms: Math.ceil(timeoutMs),
      reserved: 0,
    },
    request,
  );
  return request;
}

function addressOf(host: string, port: number): Uint8Array {
  const address = nativeBuffer(STRUCTS.LaneAddress.size).bytes;
  const text = new TextEncoder().encode(host);
  const bytes = new Uint8Array(HOST_BYTES);
  // One that does not fit is no address.
  if (text.length < HOST_BYTES) bytes.set(text);
  writeStruct("LaneAddress", { host: bytes, port, reserved: 0 }, address);
  return address;
}

async function resolve(host: string): Promise<string> {
  if (isIP(host) !== 0) return host;
  try {
    return (await lookup(host)).address;
  } catch {
    throw new LaneError("unreachable");
  }
}

/**
 * Lanes to and from one region. Throws NativeError where the host has neither memory nor threads
 * for them.
 */
export function openLanes(native: Native, options: LanesOptions): Lanes {
  return new NativeLanes(native, options);
}
