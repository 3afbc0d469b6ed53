import { assert } from "../core/index.ts";
import { RDMA_EVENT, STATUS, STRUCTS } from "./abi.gen.ts";
import { nativeBuffer } from "./buffers.ts";
import { writeStruct } from "./layout.ts";
import type { Native } from "./native.ts";
import type { Lent, RdmaAddress, RdmaFault, RdmaLink, RdmaRead, RdmaWindow } from "./rdma.ts";

/** What became of a link, a loan or a read. */
export interface RdmaDone {
  /** A `RDMA_EVENT`. */
  readonly event: number;
  readonly fault: RdmaFault | "none";
  readonly result: bigint;
  readonly key: number;
}

/** Where events are waited for. */
export interface RdmaWaits {
  /** The token of one whose events `settle` gets from now on, until it says that it is over. */
  wait(settle: (done: RdmaDone) => "more" | "over"): number;
  forget(token: number): void;
}

const SPAN = STRUCTS.RdmaSpan;

export class NativeRdmaLink implements RdmaLink {
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
  /** Loans that can be read, or are about to be: when they cannot any more. */
  readonly #loans = new Map<number, PromiseWithResolvers<void>>();
  #isNamed = true;

  constructor(native: Native, handle: number, address: RdmaAddress, waits: RdmaWaits) {
    this.#native = native;
    this.#handle = handle;
    this.address = address;
    this.#waits = waits;
    this.ended = this.#ending.promise;
  }

  /** The link's last event. */
  tell({ fault }: RdmaDone): void {
    assert(fault !== "none", "a link ends for a reason");
    assert(this.#loans.size === 0, "nothing is lent by a link that has ended");
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
    const loan = Promise.withResolvers<void>();
    const token = this.#waits.wait((done) => {
      if (done.event === RDMA_EVENT.lent && done.fault === "none") {
        resolve({ ok: true, window: { address: done.result, key: done.key } });
        return "more";
      }
      this.#loans.delete(token);
      loan.resolve();
      if (done.fault !== "none") resolve({ ok: false, fault: done.fault });
      return "over";
    });
    const { hearth_rdma_lend: call } = this.#native.symbols;
    const refused = this.#submit("hearth_rdma_lend", call, token, offset, bytes, null);
    if (refused === null) this.#loans.set(token, loan);
    else void refused.then((fault) => resolve({ ok: false, fault }));
    return { token, lent: promise };
  }

  takeBack(token: number): Promise<void> {
    const loan = this.#loans.get(token);
    if (loan === undefined) return Promise.resolve();
    if (this.#isNamed) {
      const code = this.#native.symbols.hearth_rdma_return(this.#handle, token);
      this.#native.check("hearth_rdma_return", code);
    }
    return loan.promise;
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

  /** Null: its events will come. Else why not, which the link may have to say first. */
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
