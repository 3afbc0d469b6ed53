import type { Clock, WorkerId } from "../../core/index.ts";
import type { ConnectionFault, TransportLog } from "../transport.ts";
import type { PeerIdentity, Trust } from "../trust.ts";

/** A semaphore with a bounded queue in order of arrival. */
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

  /** False: the signal fired, or the semaphore was closed. */
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

  /** Refuses all waiting callers. */
  close(): void {
    for (const settle of this.#waiting.splice(0)) settle(false);
  }
}

/** An open connection, with the peer's certificate. */
export interface TrustedConnection {
  readonly der: Uint8Array;
  readonly identity: PeerIdentity;
  /** The worker that this host dialled; null: the peer connected. */
  readonly dialled: WorkerId | null;
  /** Ends the connection because its certificate is no longer accepted. */
  refuse(why: string): void;
}

interface TrustedConnectionsOptions {
  readonly trust: Trust;
  readonly clock: Clock;
  readonly log: TransportLog;
  /** Interval of the expiry check in milliseconds. */
  readonly checkMs: number;
}

/**
 * The open connections of a transport. When credentials change or a certificate expires, it ends
 * those that would be refused if they were made now; the others continue.
 */
export class TrustedConnections {
  readonly #options: TrustedConnectionsOptions;
  readonly #connections = new Set<TrustedConnection>();
  #timer: Disposable | null = null;

  constructor(options: TrustedConnectionsOptions) {
    this.#options = options;
  }

  /** Watches the connection until the result is disposed. */
  watch(connection: TrustedConnection): Disposable {
    const { clock, checkMs } = this.#options;
    this.#connections.add(connection);
    this.#timer ??= clock.every(checkMs, () => this.#check());
    return { [Symbol.dispose]: () => this.#drop(connection) };
  }

  #drop(connection: TrustedConnection): void {
    this.#connections.delete(connection);
    if (this.#connections.size > 0) return;
    this.#timer?.[Symbol.dispose]();
    this.#timer = null;
  }

  /** The credentials have changed: ends connections that are no longer accepted. */
  authorize(): void {
    for (const connection of [...this.#connections]) this.#authorize(connection);
  }

  /** Checks expiry only; signatures were verified already. */
  #check(): void {
    const nowMs = this.#options.clock.wallMs();
    for (const connection of [...this.#connections]) {
      if (connection.identity.notAfterMs < nowMs) this.#authorize(connection);
    }
  }

  #authorize(connection: TrustedConnection): void {
    const { trust, log } = this.#options;
    const authorized = trust.authorize(connection.der, connection.dialled);
    if (authorized.ok) return;
    const { why } = authorized;
    log("warn", "peer no longer accepted", { peer: connection.identity.worker, why });
    this.#drop(connection);
    connection.refuse(why);
  }
}

/** A caller's signal and deadline combined into one signal; disposed when the call ends. */
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

  /** The reason it fired. */
  get fault(): ConnectionFault {
    return this.#theirs?.aborted
      ? { kind: "aborted", why: "the request was cancelled" }
      : { kind: "stalled", why: "the deadline passed" };
  }

  [Symbol.dispose](): void {
    this.#timer[Symbol.dispose]();
    this.#theirs?.removeEventListener("abort", this.#onAbort);
  }
}
