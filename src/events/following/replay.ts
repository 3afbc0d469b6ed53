import type { Clock, Random } from "../../core/index.ts";
import { connectDealer, type ZmtpDealer, type ZmtpMessage } from "../zmtp/index.ts";

export interface ReplayOptions {
  readonly endpoint: string;
  readonly clock: Clock;
  readonly random: Random;
  /** Without an answer for so long it is given up. */
  readonly answerMs: number;
}

/** One batch of the engine's buffer. */
export type ReplayedBatch = (sequence: number, payload: Uint8Array) => void;

const END = 0xffff_ffff_ffff_ffffn;

interface Asking {
  readonly take: ReplayedBatch;
  readonly end: (isWhole: boolean) => void;
  timer: Disposable;
}

/** Asks an engine's replay endpoint for batches that were missed; one question at a time. */
export class Replay implements AsyncDisposable {
  readonly #options: ReplayOptions;
  #dealer: ZmtpDealer;
  #asking: Asking | null = null;
  #isPaused = false;
  #isClosed = false;

  constructor(options: ReplayOptions) {
    this.#options = options;
    this.#dealer = this.#dial();
  }

  #dial(): ZmtpDealer {
    const { endpoint, clock, random } = this.#options;
    return connectDealer({
      ...{ endpoint, clock, random },
      onMessage: (message) => this.#answer(message),
      onDisconnected: () => this.#end(false),
    });
  }

  /** True: all that it still has from `from` on went to `take`. False: it did not answer. */
  ask(from: number, take: ReplayedBatch): Promise<boolean> {
    this.#end(false);
    const asked = Promise.withResolvers<boolean>();
    const sequence = new Uint8Array(8);
    new DataView(sequence.buffer).setBigUint64(0, BigInt(from));
    if (!this.#dealer.send([new Uint8Array(), sequence])) return Promise.resolve(false);
    this.#asking = { take, end: asked.resolve, timer: this.#late() };
    return asked.promise;
  }

  /** Reads no answers until `resume`: the reader of the batches is behind. */
  pause(): void {
    this.#isPaused = true;
    this.#dealer.pause();
  }

  resume(): void {
    this.#isPaused = false;
    this.#dealer.resume();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#isClosed = true;
    this.#end(false);
    await this.#dealer[Symbol.asyncDispose]();
  }

  #late(): Disposable {
    return this.#options.clock.after(this.#options.answerMs, () => this.#giveUp());
  }

  /** Late answers would be taken for those of the next question: they end with the connection. */
  #giveUp(): void {
    if (this.#isPaused && this.#asking !== null) {
      this.#asking.timer = this.#late();
      return;
    }
    const late = this.#dealer;
    this.#end(false);
    if (this.#isClosed) return;
    this.#dealer = this.#dial();
    void late[Symbol.asyncDispose]();
  }

  /** An empty frame, then perhaps the topic, then number and payload. */
  #answer(message: ZmtpMessage): void {
    const asking = this.#asking;
    const [number, payload] = message.slice(-2);
    const isAnswer = message.length >= 3 && message.length <= 4 && message[0]!.length === 0;
    if (asking === null || !isAnswer || number?.length !== 8 || payload === undefined) return;
    asking.timer[Symbol.dispose]();
    const sequence = sequenceOf(number);
    if (sequence === END) {
      this.#end(true);
      return;
    }
    asking.timer = this.#late();
    if (sequence <= BigInt(Number.MAX_SAFE_INTEGER)) asking.take(Number(sequence), payload);
  }

  #end(isWhole: boolean): void {
    const asking = this.#asking;
    if (asking === null) return;
    this.#asking = null;
    asking.timer[Symbol.dispose]();
    asking.end(isWhole);
  }
}

export function sequenceOf(frame: Uint8Array): bigint {
  return new DataView(frame.buffer, frame.byteOffset, frame.byteLength).getBigUint64(0);
}
