import type { IncomingMessage } from "node:http";
import type { Clock } from "../../../core/index.ts";
import { stageOfError } from "./error-stage.ts";
import type { FailureStage, UpstreamOrder, UpstreamPiece } from "./upstream.ts";

/**
 * The body of an answer, piece by piece. The socket is paused while a piece lies here, so that what
 * nobody reads waits at its sender.
 */
export class BodyQueue {
  readonly #message: IncomingMessage;
  readonly #clock: Clock;
  readonly #pieces: Uint8Array<ArrayBuffer>[] = [];
  readonly #idleMs: number;
  /** Of the first piece. */
  #waitMs: number;
  #end: UpstreamPiece | null = null;
  #waiting: ((piece: UpstreamPiece) => void) | null = null;

  constructor(
    message: IncomingMessage,
    clock: Clock,
    { firstByteMs, idleMs }: Pick<UpstreamOrder, "firstByteMs" | "idleMs">,
  ) {
    [this.#message, this.#clock] = [message, clock];
    [this.#waitMs, this.#idleMs] = [firstByteMs, idleMs];
    message.on("data", (bytes: Buffer<ArrayBuffer>) => this.#take(bytes));
    message.on("end", () => this.#finish({ kind: "end" }));
    message.on("error", (fault) => this.fail(stageOfError(fault), fault.message));
    message.on("close", () => {
      if (!message.complete) this.fail("sent", "the connection ended in the middle of an answer");
    });
  }

  read(): Promise<UpstreamPiece> {
    const next = this.#pieces.shift();
    if (next !== undefined) return Promise.resolve({ kind: "bytes", bytes: next });
    if (this.#end !== null) return Promise.resolve(this.#end);
    const ms = this.#waitMs;
    return new Promise((resolve) => {
      const timer = this.#clock.after(ms, () => {
        this.fail("late", `nothing came for ${ms} ms`);
        this.#message.destroy();
      });
      this.#waiting = (piece) => {
        timer[Symbol.dispose]();
        resolve(piece);
      };
      this.#message.resume();
    });
  }

  /** What lies here is still read before it. */
  fail(stage: FailureStage, why: string): void {
    this.#finish({ kind: "failed", stage, why });
  }

  #take(bytes: Uint8Array<ArrayBuffer>): void {
    this.#waitMs = this.#idleMs;
    const waiting = this.#waiting;
    this.#waiting = null;
    if (waiting === null) {
      this.#pieces.push(bytes);
      this.#message.pause();
    } else waiting({ kind: "bytes", bytes });
  }

  #finish(end: UpstreamPiece): void {
    this.#end ??= end;
    const waiting = this.#waiting;
    this.#waiting = null;
    waiting?.(this.#end);
  }
}
