import type { Clock } from "../core/index.ts";
import type { Bucket, BucketWrite, Bus, BusLog } from "./bus.ts";

export interface PresenceOptions {
  readonly bus: Bus;
  readonly clock: Clock;
  readonly log?: BusLog;
  /**
   * Name of a bucket that the operator has created. It must keep values for longer than `everyMs`.
   */
  readonly bucket: string;
  readonly key: string;
  readonly data: Uint8Array;
  /** Ms between two writes. */
  readonly everyMs: number;
}

/**
 * Keeps a value in a bucket as long as this object lives: writes it after each connect and then
 * periodically, before the bucket expires it. Disposing the object deletes the value. After a
 * crash, the bucket expires it.
 */
export class Presence implements AsyncDisposable {
  readonly #options: PresenceOptions;
  readonly #bucket: Bucket | null;
  readonly #timer: Disposable;
  readonly #watch: Disposable;
  #last: Promise<BucketWrite> | null = null;
  #refusal: string | null = null;
  #isOver = false;

  /** Starts writing. Does nothing if the bus has no durable storage. */
  constructor(options: PresenceOptions) {
    this.#options = options;
    this.#bucket = options.bus.durable?.bucket(options.bucket) ?? null;
    this.#timer = options.clock.every(options.everyMs, () => this.#put());
    this.#watch = options.bus.onStatus(({ status }) => {
      if (status === "connected") this.#put();
    });
    if (options.bus.state.status === "connected") this.#put();
  }

  /**
   * Why the broker rejected the last write. Null if the write succeeded or the broker was not
   * reached.
   */
  get refusal(): string | null {
    return this.#refusal;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#timer[Symbol.dispose]();
    this.#watch[Symbol.dispose]();
    await this.#last;
    if (this.#options.bus.state.status === "connected") await this.#bucket?.delete(this.#key);
  }

  get #key(): string {
    return this.#options.key;
  }

  #put(): void {
    if (this.#isOver || this.#bucket === null || this.#last !== null) return;
    this.#last = this.#bucket.put(this.#key, this.#options.data).then((write) => {
      this.#last = null;
      if (write.kind === "refused" && write.why !== this.#refusal) {
        const { bucket, log } = this.#options;
        log?.("warn", "worker bucket write refused", { bucket, why: write.why });
      }
      this.#refusal = write.kind === "refused" ? write.why : null;
      return write;
    });
  }
}
