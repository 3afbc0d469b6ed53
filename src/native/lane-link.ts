import { assert } from "../core/index.ts";
import { LANE_EVENT, STATUS, STRUCTS } from "./abi.gen.ts";
import { nativeBuffer } from "./buffers.ts";
import { LaneError, type LaneFault, type LaneLink, type Received, type Sent } from "./lanes.ts";
import type { Native } from "./native.ts";

const TRANSFER = STRUCTS.LaneTransfer;

/** What became of a session or of a transfer. */
export interface LaneDone {
  /** A `LANE_EVENT`. */
  readonly event: number;
  readonly fault: LaneFault | "none";
  readonly checksum: bigint;
}

/** Where completions are waited for. */
export interface LaneWaits {
  /** The token of one for which `settle` waits from now on. */
  wait(settle: (done: LaneDone) => void): number;
  forget(token: number): void;
}

export class NativeLaneLink implements LaneLink {
  readonly ended: Promise<LaneFault>;
  readonly #native: Native;
  readonly #handle: number;
  readonly #part: "sent" | "received";
  readonly #waits: LaneWaits;
  readonly #request = nativeBuffer(TRANSFER.size).bytes;
  readonly #requestView = new DataView(this.#request.buffer);
  readonly #answer = new BigUint64Array(new ArrayBuffer(8));
  readonly #answerBytes = new Uint8Array(this.#answer.buffer);
  readonly #opening = Promise.withResolvers<void>();
  readonly #ending = Promise.withResolvers<LaneFault>();
  #fault: LaneFault | null = null;
  #isNamed = true;

  constructor(native: Native, handle: number, part: "sent" | "received", waits: LaneWaits) {
    this.#native = native;
    this.#handle = handle;
    this.#part = part;
    this.#waits = waits;
    this.ended = this.#ending.promise;
  }

  /** Resolves when all lanes are up. Throws LaneError where they never will be. */
  opened(): Promise<void> {
    return this.#opening.promise;
  }

  /** The session's own events. */
  tell({ event, fault }: LaneDone): void {
    if (event === LANE_EVENT.opened) {
      this.#opening.resolve();
      return;
    }
    assert(fault !== "none", "a session ends for a reason");
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
    assert(part === this.#part, "bytes flow from who expects to who dials");
    const { promise, resolve } = Promise.withResolvers<LaneDone>();
    const token = this.#waits.wait(resolve);
    const code = this.#isNamed ? this.#submit(token, transfer, offset, bytes) : STATUS.closed;
    if (code === 0) return promise;
    this.#waits.forget(token);
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
    const call = this.#native.symbols.hearth_session_arrived;
    const code = call(this.#handle, transfer, this.#answerBytes);
    this.#native.check("hearth_session_arrived", code);
    return Number(this.#answer[0]!);
  }

  cancel(transfer: number): void {
    if (!this.#isNamed) return;
    const code = this.#native.symbols.hearth_session_cancel(this.#handle, transfer);
    this.#native.check("hearth_session_cancel", code);
  }

  #unname(): void {
    if (!this.#isNamed) return;
    this.#isNamed = false;
    const code = this.#native.symbols.hearth_session_end(this.#handle);
    this.#native.check("hearth_session_end", code);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#unname();
    await this.ended;
  }
}
