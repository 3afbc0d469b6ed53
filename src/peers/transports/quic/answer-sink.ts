import type { PeerAnswer, PeerRequest } from "../../messages.ts";
import type { LinkFault } from "../../transport.ts";
import { ANSWER_BYTES_MAX, decodeAnswer, MessageReader, whyNoAnswer } from "../../wire/index.ts";
import type { Sink } from "./exchange.ts";

/** Takes the one answer of a call. */
export class AnswerSink implements Sink {
  answer: PeerAnswer | null = null;
  readonly #request: Exclude<PeerRequest, { op: "pull" }>;
  readonly #reader = new MessageReader(ANSWER_BYTES_MAX);

  constructor(request: Exclude<PeerRequest, { op: "pull" }>) {
    this.#request = request;
  }

  get isComplete(): boolean {
    return this.answer !== null;
  }

  take(chunk: Uint8Array): LinkFault | null {
    const end = this.#reader.take(chunk, 0);
    const { fault, message } = this.#reader;
    if (fault !== null) return { kind: "protocol", why: fault };
    if (message === null) return null;
    if (end < chunk.length) return { kind: "protocol", why: "something behind the answer" };
    const decoded = decodeAnswer(message);
    if (!decoded.ok) return { kind: "protocol", why: decoded.why };
    const why = whyNoAnswer(this.#request, decoded.answer);
    if (why !== null) return { kind: "protocol", why };
    this.answer = decoded.answer;
    return null;
  }

  pause(): void {}
}
