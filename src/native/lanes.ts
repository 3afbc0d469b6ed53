import { lookup } from "node:dns/promises";
import { isIP } from "node:net";
import { assert, HearthError } from "../core/index.ts";
import { LANE_CIPHER, LANE_EVENT, LANE_FAULT, STATUS, STRUCTS } from "./abi.gen.ts";
import { Completions } from "./completions.ts";
import { NativeError, namesOf, nativeBuffer, structOf } from "./memory.ts";
import type { Native } from "./native.ts";
import type { Region } from "./region.ts";

/**
 * Ciphers for payload between hosts. `none` is allowed only on a network that the operator declared
 * trusted.
 */
export const CIPHERS = ["aegis-128l", "aes-128-gcm", "none"] as const;
export type Cipher = (typeof CIPHERS)[number];

/** Reasons why a transfer or a session failed. */
export type LaneFault = Exclude<keyof typeof LANE_FAULT, "none">;

export interface LaneSession {
  /** Identifier of the session: 16 random bytes. Sent unencrypted on each connection. */
  readonly id: Uint8Array;
  /** 32 random bytes that the hosts exchanged over TLS. Encryption keys are derived from them. */
  readonly secret: Uint8Array;
  readonly cipher: Cipher;
  readonly lanes: number;
}

export type Sent = { readonly ok: true } | { readonly ok: false; readonly fault: LaneFault };

export type Received =
  /** XXH3-64 of the received payload, computed after its last byte was written. */
  | { readonly ok: true; readonly checksum: bigint }
  | { readonly ok: false; readonly fault: LaneFault };

/**
 * TCP connections ("lanes") that native threads serve. They carry payload from one host's arena to
 * another's in encrypted records. A session has several lanes between two hosts, and sends in one
 * direction: to the host that dialled. Promises:
 *
 * - Native threads may access a transfer's span until the transfer's promise resolves, even if it
 *   is cancelled. Afterwards nothing accesses the span.
 * - If a record was modified, repeated, dropped, or moved to another offset, lane, transfer or
 *   session, the session ends with `forged`, and none of the record's bytes is delivered. After a
 *   fault, the span's content is undefined.
 * - Received payload is written only to spans announced with `receive`, and never exceeds the
 *   announced number of bytes.
 */
export interface Lanes extends AsyncDisposable {
  /**
   * Starts to accept lanes of sessions announced with `expect`. Port 0 selects a free port. Returns
   * the port. Throws NativeError.
   */
  listen(host: string, port: number): number;
  /**
   * Opens a session on the sending host: accepts lanes that prove knowledge of the session's secret
   * within `expireMs` milliseconds. Throws LaneError if the session does not open.
   */
  expect(session: LaneSession, expireMs: number): Promise<OpenLaneSession>;
  /**
   * Opens a session on the receiving host by connecting its lanes. Throws LaneError if the session
   * does not open.
   */
  dial(
    session: LaneSession,
    host: string,
    port: number,
    timeoutMs: number,
  ): Promise<OpenLaneSession>;
}

export interface OpenLaneSession extends AsyncDisposable {
  /** Resolves with the reason when the session has ended. */
  readonly ended: Promise<LaneFault>;
  /**
   * Sends a span of the region. Resolves when the kernel has accepted all bytes, or the transfer
   * has failed. `transfer` is a number below 2^32 that this session has not used.
   */
  send(transfer: number, offset: number, bytes: number): Promise<Sent>;
  /**
   * Prepares to receive a transfer into a span. Call this before asking the other host to send.
   * `bytes` must be the exact length.
   */
  receive(transfer: number, offset: number, bytes: number): Promise<Received>;
  /** Returns the number of bytes of a transfer received so far. 0 if the transfer has ended. */
  arrived(transfer: number): number;
  /**
   * Cancels a transfer. Its promise resolves with `cancelled` when nothing accesses the span any
   * more.
   */
  cancel(transfer: number): void;
}

export interface LanesOptions {
  readonly region: Region;
  readonly threads: number;
  /**
   * Bytes of each lane's socket buffers (SO_SNDBUF and SO_RCVBUF). 0 chooses: for a host less than
   * 0.5 ms away, a send buffer that fits the CPU cache; otherwise the kernel's default. A receive
   * buffer below 4 MiB is slow.
   */
  readonly socketBytes: number;
  /** Maximum bytes encrypted with one key. Only tests set it. Default: the limit of the cipher. */
  readonly rekeyBytes?: number;
}

/** Reports that a session could not be opened. */
export class LaneError extends HearthError {
  readonly fault: LaneFault;

  constructor(fault: LaneFault) {
    super("LANES_FAILED", `lanes to a peer: ${fault.replaceAll("_", " ")}`);
    this.fault = fault;
  }
}

const DONE = STRUCTS.LaneDone;
const HOST_BYTES = 64;

const CIPHER_NUMBERS: Record<Cipher, number> = {
  "aegis-128l": LANE_CIPHER.aegis_128l,
  "aes-128-gcm": LANE_CIPHER.aes_128_gcm,
  none: LANE_CIPHER.none,
};

const FAULTS = namesOf(LANE_FAULT);

class NativeLanes implements Lanes {
  readonly #native: Native;
  readonly #handle: number;
  /** Callbacks of sessions and of their transfers, by token. */
  readonly #running: Completions<(done: LaneDone) => void>;
  readonly #links = new Set<NativeLaneLink>();
  /** Keeps the region referenced until the lanes are closed. */
  readonly #region: LanesOptions["region"];
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
    this.#running = new Completions(native, {
      reap: "hearth_lanes_reap",
      handle: this.#handle,
      entryBytes: DONE.size,
      eventFd: info.event_fd,
      deliver: (view, at) => this.#deliver(view, at),
    });
  }

  listen(host: string, port: number): number {
    this.#assertOpen("hearth_lanes_listen");
    return this.#native.call("hearth_lanes_listen", this.#handle, addressOf(host, port));
  }

  async expect(session: LaneSession, expireMs: number): Promise<OpenLaneSession> {
    return this.#open(session, expireMs, "sent", (request, out) =>
      this.#native.symbols.hearth_lanes_expect(this.#handle, request, out),
    );
  }

  async dial(
    session: LaneSession,
    host: string,
    port: number,
    timeoutMs: number,
  ): Promise<OpenLaneSession> {
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
  ): Promise<OpenLaneSession> {
    if (this.#closing !== null) throw new LaneError("closed");
    const token = this.#running.wait((done) => link.handle(done));
    const request = sessionRequest(session, timeoutMs, token);
    const out = new BigUint64Array(new ArrayBuffer(8));
    const code = call(request, new Uint8Array(out.buffer));
    request.fill(0);
    if (code < 0) this.#running.forget(token);
    if (code === STATUS.full) throw new LaneError("full");
    this.#native.check("hearth_lanes_open", code);
    const link = new NativeLaneLink(this.#native, Number(out[0]), part, this.#running);
    this.#links.add(link);
    void link.ended.then(() => {
      this.#running.forget(token);
      this.#links.delete(link);
    });
    await link.opened();
    return link;
  }

  #deliver(view: DataView, at: number): void {
    const { fields } = DONE;
    const token = Number(view.getBigUint64(at + fields.token.offset, true));
    const event = view.getUint32(at + fields.event.offset, true);
    const waiting = this.#running.of(token);
    if (event !== LANE_EVENT.opened) this.#running.forget(token);
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
    await this.#running.stop();
    this.#native.call("hearth_lanes_close", this.#handle);
  }
}

function sessionRequest(session: LaneSession, timeoutMs: number, token: number): Uint8Array {
  assert(session.id.length === 16 && session.secret.length === 32, "a session's id and secret");
  return structOf("LaneSession", {
    token: BigInt(token),
    id: session.id,
    secret: session.secret,
    cipher: CIPHER_NUMBERS[session.cipher],
    lanes: session.lanes,
    timeout_ms: Math.ceil(timeoutMs),
    reserved: 0,
  });
}

function addressOf(host: string, port: number): Uint8Array {
  const text = new TextEncoder().encode(host);
  const bytes = new Uint8Array(HOST_BYTES);
  // The field stays empty if the host name does not fit. The library rejects an empty address.
  if (text.length < HOST_BYTES) bytes.set(text);
  return structOf("LaneAddress", { host: bytes, port, reserved: 0 });
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
 * Creates the threads that carry payload from and to one memory region. Throws NativeError if
 * memory or threads are insufficient.
 */
export function openLanes(native: Native, options: LanesOptions): Lanes {
  return new NativeLanes(native, options);
}

const TRANSFER = STRUCTS.LaneTransfer;

/** Completion of a transfer, or an event of a session. */
interface LaneDone {
  /** Kind of event: a value of `LANE_EVENT`. */
  readonly event: number;
  readonly fault: LaneFault | "none";
  readonly checksum: bigint;
}

class NativeLaneLink implements OpenLaneSession {
  readonly ended: Promise<LaneFault>;
  readonly #native: Native;
  readonly #handle: number;
  readonly #part: "sent" | "received";
  readonly #running: Completions<(done: LaneDone) => void>;
  readonly #request = nativeBuffer(TRANSFER.size).bytes;
  readonly #requestView = new DataView(this.#request.buffer);
  readonly #answer = new BigUint64Array(new ArrayBuffer(8));
  readonly #answerBytes = new Uint8Array(this.#answer.buffer);
  readonly #opening = Promise.withResolvers<void>();
  readonly #ending = Promise.withResolvers<LaneFault>();
  #fault: LaneFault | null = null;
  #isNamed = true;

  constructor(
    native: Native,
    handle: number,
    part: "sent" | "received",
    running: Completions<(done: LaneDone) => void>,
  ) {
    this.#native = native;
    this.#handle = handle;
    this.#part = part;
    this.#running = running;
    this.ended = this.#ending.promise;
  }

  /**
   * Resolves when all lanes of the session are open. Throws LaneError if the session ends first.
   */
  opened(): Promise<void> {
    return this.#opening.promise;
  }

  /** Handles an event of the session: all lanes are open, or the session has ended. */
  handle({ event, fault }: LaneDone): void {
    if (event === LANE_EVENT.opened) {
      this.#opening.resolve();
      return;
    }
    assert(fault !== "none", "a session's end has a fault");
    this.#fault = fault;
    this.#unname();
    this.#opening.reject(new LaneError(fault));
    this.#ending.resolve(fault);
  }

  async send(transfer: number, offset: number, bytes: number): Promise<Sent> {
    const done = await this.#begin("sent", transfer, offset, bytes);
    return done.fault === "none" ? { ok: true } : { ok: false, fault: done.fault };
  }

  async receive(transfer: number, offset: number, bytes: number): Promise<Received> {
    const done = await this.#begin("received", transfer, offset, bytes);
    if (done.fault !== "none") return { ok: false, fault: done.fault };
    return { ok: true, checksum: done.checksum };
  }

  #begin(
    part: "sent" | "received",
    transfer: number,
    offset: number,
    bytes: number,
  ): Promise<LaneDone> {
    assert(part === this.#part, "the side that expects sends, the side that dials receives");
    const { promise, resolve } = Promise.withResolvers<LaneDone>();
    const token = this.#running.wait(resolve);
    const code = this.#isNamed ? this.#submit(token, transfer, offset, bytes) : STATUS.closed;
    if (code === 0) return promise;
    this.#running.forget(token);
    const fault = code === STATUS.full ? "full" : (this.#fault ?? "closed");
    if (code !== STATUS.full && code !== STATUS.closed) {
      this.#native.check("hearth_session_begin", code);
    }
    return Promise.resolve({ event: LANE_EVENT[part], fault, checksum: 0n });
  }

  #submit(token: number, transfer: number, offset: number, bytes: number): number {
    const { fields } = TRANSFER;
    const view = this.#requestView;
    view.setBigUint64(fields.token.offset, BigInt(token), true);
    view.setBigUint64(fields.offset.offset, BigInt(offset), true);
    view.setBigUint64(fields.bytes.offset, BigInt(bytes), true);
    view.setUint32(fields.number.offset, transfer, true);
    return this.#native.symbols.hearth_session_begin(this.#handle, this.#request);
  }

  arrived(transfer: number): number {
    if (!this.#isNamed) return 0;
    this.#native.call("hearth_session_arrived", this.#handle, transfer, this.#answerBytes);
    return Number(this.#answer[0]);
  }

  cancel(transfer: number): void {
    if (!this.#isNamed) return;
    this.#native.call("hearth_session_cancel", this.#handle, transfer);
  }

  #unname(): void {
    if (!this.#isNamed) return;
    this.#isNamed = false;
    this.#native.call("hearth_session_end", this.#handle);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#unname();
    await this.ended;
  }
}
