import type { Clock, WorkerId } from "../../core/index.ts";
import type { ConnectionFault, TransportLog } from "../transport.ts";
import type { PeerIdentity, Trust } from "../trust.ts";

/**
 * A semaphore whose callers wait in order of arrival. Callers check `isCrowded` to bound the queue.
 */
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

  /**
   * Takes a slot, waiting for one if necessary. Returns false if the deadline passes or the
   * semaphore is closed. `deadline` null: waits without limit.
   */
  take(deadline: Deadline | null): Promise<boolean> | boolean {
    if (this.#free > 0) {
      this.#free--;
      return true;
    }
    return new Promise((resolve) => {
      const settle = (got: boolean) => {
        if (deadline !== null) deadline.onOver = null;
        resolve(got);
      };
      this.#waiting.push(settle);
      if (deadline === null) return;
      deadline.onOver = () => {
        this.#waiting.splice(this.#waiting.indexOf(settle), 1);
        settle(false);
      };
    });
  }

  give(): void {
    const next = this.#waiting.shift();
    if (next === undefined) this.#free++;
    else next(true);
  }

  /** Makes all waiting calls of `take` return false. */
  close(): void {
    for (const settle of this.#waiting.splice(0)) settle(false);
  }
}

/** Limits the number of peers' requests that a transport serves at once, over all connections. */
export class RequestLimit {
  readonly #max: number;
  #running = 0;

  constructor(max: number) {
    this.#max = max;
  }

  /** Counts a request. Returns false, without counting, if the limit is reached. */
  take(): boolean {
    if (this.#running >= this.#max) return false;
    this.#running++;
    return true;
  }

  give(): void {
    this.#running--;
  }
}

/** An open connection whose peer's certificate was accepted. */
export interface TrustedConnection {
  readonly der: Uint8Array;
  readonly identity: PeerIdentity;
  /** Name of the worker that this host dialled. Null if the peer connected to this host. */
  readonly dialled: WorkerId | null;
  /** Ends the connection because the peer's certificate is not accepted any more. */
  refuse(why: string): void;
}

interface TrustedConnectionsOptions {
  readonly trust: Trust;
  readonly clock: Clock;
  readonly log: TransportLog;
  /** Interval in milliseconds at which connections are checked for expired certificates. */
  readonly checkMs: number;
}

/**
 * The open connections of a transport. When this host's credentials change or a peer's certificate
 * expires, ends the connections that would be refused if they were made now. All others continue.
 */
export class TrustedConnections {
  readonly #options: TrustedConnectionsOptions;
  readonly #connections = new Set<TrustedConnection>();
  #timer: Disposable | null = null;

  constructor(options: TrustedConnectionsOptions) {
    this.#options = options;
  }

  /** Adds a connection, until the result is disposed. */
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

  /** Applies changed credentials: ends connections whose peers are not accepted any more. */
  authorize(): void {
    for (const connection of [...this.#connections]) this.#authorize(connection);
  }

  /** Checks for expired certificates. Signatures were verified when the connections were made. */
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

/**
 * A deadline combined with a caller's signal. Does not create an AbortSignal, because in this
 * runtime that costs more than all other work for a small request.
 */
export class Deadline implements Disposable {
  /** Called once, when the deadline has passed or the signal has fired. */
  onOver: ((fault: ConnectionFault) => void) | null = null;
  /** Reason why the deadline has ended. Null if it has not. */
  fault: ConnectionFault | null = null;
  readonly #signal: AbortSignal | undefined;
  readonly #clock: Clock;
  readonly #endMs: number;
  readonly #timer: Disposable;
  readonly #onAbort = () => this.#end({ kind: "aborted", why: "the request was cancelled" });

  constructor(clock: Clock, deadlineMs: number, signal: AbortSignal | undefined) {
    this.#clock = clock;
    this.#endMs = clock.monotonicMs() + deadlineMs;
    this.#signal = signal;
    this.#timer = clock.after(deadlineMs, () => {
      this.#end({ kind: "stalled", why: "the deadline passed" });
    });
    signal?.addEventListener("abort", this.#onAbort, { once: true });
    if (signal?.aborted) this.#onAbort();
  }

  get leftMs(): number {
    return Math.max(0, this.#endMs - this.#clock.monotonicMs());
  }

  #end(fault: ConnectionFault): void {
    if (this.fault !== null) return;
    this.fault = fault;
    this.onOver?.(fault);
  }

  [Symbol.dispose](): void {
    this.#timer[Symbol.dispose]();
    this.#signal?.removeEventListener("abort", this.#onAbort);
  }
}
