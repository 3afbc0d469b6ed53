import type { Clock, WorkerId } from "../../core/index.ts";
import type { LinkFault, TransportLog } from "../transport.ts";
import type { PeerIdentity, Trust } from "../trust.ts";

/** So many at a time; the others wait for their turn, in order, and not too many of them. */
export class RequestSlots {
  readonly #waiting: ((got: boolean) => void)[] = [];
  readonly #waitingMax: number;
  #free: number;

  constructor(slots: number, waitingMax: number) {
    this.#free = slots;
    this.#waitingMax = waitingMax;
  }

  get isCrowded(): boolean {
    return this.#waiting.length >= this.#waitingMax;
  }

  /** False: the signal came first, or nobody gets one any more. */
  take(signal: AbortSignal | undefined): Promise<boolean> | boolean {
    if (this.#free > 0) {
      this.#free--;
      return true;
    }
    return new Promise((resolve) => {
      const settle = (got: boolean) => {
        signal?.removeEventListener("abort", onAbort);
        resolve(got);
      };
      const onAbort = () => {
        this.#waiting.splice(this.#waiting.indexOf(settle), 1);
        settle(false);
      };
      this.#waiting.push(settle);
      signal?.addEventListener("abort", onAbort, { once: true });
    });
  }

  give(): void {
    const next = this.#waiting.shift();
    if (next === undefined) this.#free++;
    else next(true);
  }

  /** Those who wait get none. */
  close(): void {
    for (const settle of this.#waiting.splice(0)) settle(false);
  }
}

/** A link that lives, with the certificate that its peer showed. */
export interface TrustedConnection {
  readonly der: Uint8Array;
  readonly identity: PeerIdentity;
  /** Whom we called; null: it called us. */
  readonly dialled: WorkerId | null;
  /** Its certificate is not accepted any more: ends it. */
  refuse(why: string): void;
}

interface TrustedConnectionsOptions {
  readonly trust: Trust;
  readonly clock: Clock;
  readonly log: TransportLog;
  /** How often it is looked whether a certificate has ended, in milliseconds. */
  readonly lookMs: number;
}

/**
 * The links of a transport, held against what is believed now: one that would be refused if it were
 * made anew ends when that changes, and when its certificate ends. Those that are good go on.
 */
export class TrustedConnections {
  readonly #options: TrustedConnectionsOptions;
  readonly #connections = new Set<TrustedConnection>();
  #timer: Disposable | null = null;

  constructor(options: TrustedConnectionsOptions) {
    this.#options = options;
  }

  /** From now on, until disposed. */
  hold(connection: TrustedConnection): Disposable {
    const { clock, lookMs } = this.#options;
    this.#connections.add(connection);
    this.#timer ??= clock.every(lookMs, () => this.#look());
    return { [Symbol.dispose]: () => this.#drop(connection) };
  }

  #drop(connection: TrustedConnection): void {
    this.#connections.delete(connection);
    if (this.#connections.size > 0) return;
    this.#timer?.[Symbol.dispose]();
    this.#timer = null;
  }

  /** What is believed has changed: ends those that are not accepted any more. */
  judge(): void {
    for (const connection of [...this.#connections]) this.#judge(connection);
  }

  /** Signatures are not verified again for nothing. */
  #look(): void {
    const nowMs = this.#options.clock.wallMs();
    for (const connection of [...this.#connections]) {
      if (connection.identity.notAfterMs < nowMs) this.#judge(connection);
    }
  }

  #judge(connection: TrustedConnection): void {
    const { trust, log } = this.#options;
    const judged = trust.judge(connection.der, connection.dialled);
    if (judged.ok) return;
    const { why } = judged;
    log("warn", "a peer is not accepted any more", { peer: connection.identity.worker, why });
    this.#drop(connection);
    connection.refuse(why);
  }
}

/** A caller's signal and deadline as one signal; disposed when nobody waits any more. */
export class Deadline implements Disposable {
  readonly #over = new AbortController();
  readonly #theirs: AbortSignal | undefined;
  readonly #timer: Disposable;
  readonly #clock: Clock;
  readonly #endMs: number;
  readonly #onAbort = () => this.#over.abort();

  constructor(clock: Clock, deadlineMs: number, signal: AbortSignal | undefined) {
    this.#clock = clock;
    this.#endMs = clock.monotonicMs() + deadlineMs;
    this.#theirs = signal;
    this.#timer = clock.after(deadlineMs, this.#onAbort);
    signal?.addEventListener("abort", this.#onAbort, { once: true });
    if (signal?.aborted) this.#over.abort();
  }

  get signal(): AbortSignal {
    return this.#over.signal;
  }

  get leftMs(): number {
    return Math.max(0, this.#endMs - this.#clock.monotonicMs());
  }

  /** Why it is over, once it is. */
  get fault(): LinkFault {
    return this.#theirs?.aborted
      ? { kind: "aborted", why: "the request was given up" }
      : { kind: "stalled", why: "the deadline passed" };
  }

  [Symbol.dispose](): void {
    this.#timer[Symbol.dispose]();
    this.#theirs?.removeEventListener("abort", this.#onAbort);
  }
}
