import { HearthError } from "../core/index.ts";
import type { ClientLine } from "./client-line.ts";
import {
  type AnnounceRequest,
  decodeCommand,
  decodeJoinReply,
  decodeLookupReply,
  decodeNamespaceReply,
  decodeOutcomesReply,
  encodeAnnounceRequest,
  encodeCommandRequest,
  encodeJoinRequest,
  encodeLookupRequest,
  encodeNamespaceRequest,
  encodeUnholdRequest,
  type Frame,
  type JoinRequest,
  LookupFlag,
  type LookupReply,
  LookupReplyFlag,
  type LookupRequest,
  type NamespaceReply,
  type NamespaceRequest,
  type OutcomeItems,
} from "./protocol/index.ts";

export interface LookupAnswer extends LookupReply {
  /** The best tier's bit of each block. */
  readonly best: Uint8Array;
  /** 32 bytes a block; null: they were not asked for. */
  readonly digests: Uint8Array | null;
}

/** What a client asks for as part of an engine; only if the hello's answer has `Feature.engine`. */
export class ClientEngine {
  readonly #line: ClientLine;

  constructor(line: ClientLine) {
    this.#line = line;
  }

  /** Connections of the engine now. */
  join(request: JoinRequest): Promise<number> {
    return this.#ask(
      (output, id) => encodeJoinRequest(output, id, request),
      (frame) => {
        const members = decodeJoinReply(frame);
        return typeof members === "number" ? members : fail(members.text);
      },
    );
  }

  openNamespace(request: NamespaceRequest): Promise<NamespaceReply> {
    return this.#ask(
      (output, id) => encodeNamespaceRequest(output, id, request),
      (frame) => this.#line.take(decodeNamespaceReply(frame)),
    );
  }

  /** `onPartial` is called for each answer before the last. */
  lookup(
    request: LookupRequest,
    onPartial: (reply: LookupReply) => void = () => undefined,
  ): Promise<LookupAnswer> {
    const best = new Uint8Array(request.count);
    const wantsDigests = (request.flags & LookupFlag.digests) !== 0;
    const digests = wantsDigests ? new Uint8Array(32 * request.count) : null;
    let answer: LookupAnswer | null = null;
    const decode = (frame: Frame) => {
      const bare = wantsDigests && frame.count === 0;
      const reply = decodeLookupReply(frame, best, bare ? null : digests);
      if ("fatal" in reply) return reply;
      if ((reply.flags & LookupReplyFlag.more) !== 0) {
        onPartial(reply);
        return "more" as const;
      }
      const { count } = frame;
      const named = digests?.subarray(0, 32 * count) ?? null;
      answer = { ...reply, best: best.subarray(0, count), digests: named };
      return null;
    };
    return this.#line
      .request((output, id) => encodeLookupRequest(output, id, request), decode)
      .then(() => answer!);
  }

  unhold(holds: readonly number[], into: OutcomeItems): Promise<void> {
    return this.#line.request(
      (output, id) => encodeUnholdRequest(output, id, holds),
      (frame) => decodeOutcomesReply(frame, into),
    );
  }

  announce(request: AnnounceRequest, into: OutcomeItems): Promise<void> {
    return this.#line.request(
      (output, id) => encodeAnnounceRequest(output, id, request),
      (frame) => decodeOutcomesReply(frame, into),
    );
  }

  /** The receipt, JSON as UTF-8. */
  command(json: Uint8Array): Promise<Uint8Array> {
    return this.#ask(
      (output, id) => encodeCommandRequest(output, id, json),
      (frame) => this.#line.take(decodeCommand(frame)),
    );
  }

  async #ask<Value>(
    encode: Parameters<ClientLine["request"]>[0],
    decode: (frame: Frame) => Value,
  ): Promise<Value> {
    let value: Value | undefined;
    await this.#line.request(encode, (frame) => {
      value = decode(frame);
      return null;
    });
    return value!;
  }
}

function fail(text: string): never {
  throw new HearthError("ENGINE_PROTOCOL", `the agent's answer: ${text}`);
}
