import type { Clock } from "../../../core/index.ts";
import type { LinkFault } from "../../transport.ts";
import { Code, faultOf, resetCodeOf, resetFault } from "./codes.ts";
import type { Limit } from "./limit.ts";
import type { QuicLimits } from "./limits.ts";
import type { Litter } from "./litter.ts";
import type { Session, Stream } from "./module.ts";
import { StreamOut } from "./stream-out.ts";
import { tearStream } from "./tear-stream.ts";

/** Takes what comes on a stream. */
export interface Sink {
  /** Nothing more is needed. */
  readonly isComplete: boolean;
  take(chunk: Uint8Array): LinkFault | null;
  /** Chunks that came together are over. */
  pause(): void;
}

export interface ExchangeParts {
  readonly session: Session;
  readonly clock: Clock;
  readonly limits: QuicLimits;
  readonly litter: Litter;
  readonly limit: Limit;
  readonly sink: Sink;
  onHeard(nowMs: number): void;
  /** Its stream is finished, which may be later than the request. */
  onOver(): void;
}

/** One request of ours on a stream of its own. */
export class Exchange {
  readonly #parts: ExchangeParts;
  readonly #done = Promise.withResolvers<LinkFault | null>();
  #stream: Stream | null = null;
  #out: StreamOut | null = null;
  /** It is over, and so long after that what still comes is not waited for. */
  #endMs = Number.POSITIVE_INFINITY;
  #isDone = false;
  #heardMs: number;
  /** The stream was reset with this code; null: it was not. */
  resetCode: number | null = null;

  constructor(parts: ExchangeParts) {
    this.#parts = parts;
    this.#heardMs = parts.clock.monotonicMs();
  }

  /** Null: the sink is complete. When it has resolved, the sink gets nothing more. Never throws. */
  async run(preface: Uint8Array, request: Uint8Array): Promise<LinkFault | null> {
    const { limit, onOver } = this.#parts;
    if (limit.fault !== null) return limit.fault;
    limit.onOver = () => this.#finish(limit.fault, Code.cancelled);
    void this.#exchange(preface, request).then(onOver);
    const fault = await this.#done.promise;
    limit.onOver = null;
    return fault;
  }

  /** Ends it from outside. */
  end(fault: LinkFault): void {
    this.#finish(fault, Code.cancelled);
  }

  /** Called now and then: gives up what stands still. */
  look(nowMs: number): void {
    const { limits } = this.#parts;
    // It waits for its turn: the other side takes so many requests at a time.
    if (this.#stream?.id === null) this.#heardMs = nowMs;
    if (!this.#isDone && nowMs - this.#heardMs >= limits.stallMs) {
      this.#finish({ kind: "stalled", why: "nothing came for too long" }, Code.stalled);
    }
    if (nowMs - this.#endMs >= limits.stallMs) this.#tear(Code.protocol);
  }

  #finish(fault: LinkFault | null, code: number = Code.none): void {
    if (this.#isDone) return;
    this.#isDone = true;
    this.#endMs = this.#parts.clock.monotonicMs();
    if (fault !== null) this.#tear(code);
    this.#done.resolve(fault);
  }

  #tear(code: number): void {
    this.#out?.stop();
    if (this.#stream !== null) tearStream(this.#stream, code);
  }

  async #exchange(preface: Uint8Array, request: Uint8Array): Promise<void> {
    const { session, limits, litter } = this.#parts;
    try {
      const stream = await session.createBidirectionalStream();
      this.#stream = stream;
      const out = new StreamOut(stream, limits);
      this.#out = out;
      const over = () => out.stop();
      stream.closed.then(over, over);
      if (this.#isDone) return this.#tear(Code.cancelled);
      const writing = this.#write(out, preface, request);
      await this.#read(stream);
      this.#finish({ kind: "broken", why: "the answer ended too early" }, Code.none);
      await writing;
    } catch (thrown) {
      this.resetCode = resetCodeOf(thrown);
      const fault = this.resetCode === null ? faultOf(thrown) : resetFault(this.resetCode);
      this.#finish(fault, Code.none);
    }
    if (this.#stream !== null) litter.add(this.#stream, 0);
  }

  async #write(out: StreamOut, preface: Uint8Array, request: Uint8Array): Promise<void> {
    if (await out.write(request, preface)) await out.end();
  }

  /** Reads to the end of the stream, also behind what is needed: only then it is finished. */
  async #read(stream: Stream): Promise<void> {
    const { sink, clock, onHeard } = this.#parts;
    for await (const batch of stream) {
      this.#heardMs = clock.monotonicMs();
      onHeard(this.#heardMs);
      for (const chunk of batch) {
        if (this.#isDone) break;
        const fault = sink.take(chunk);
        if (fault !== null) return this.#finish(fault, Code.protocol);
        if (sink.isComplete) this.#finish(null);
      }
      if (!this.#isDone) sink.pause();
    }
  }
}
