import * as protocol from "../../src/engine/protocol/index.ts";
import {
  batchOf,
  CAPACITY,
  type Case,
  type Columns,
  fill,
  isRefusal,
  outcomesCase,
  plain,
  sequence,
  unwrap,
} from "./protocol-support.ts";

/** The golden frames of connections that form one engine. */

const { Op, Outcome } = protocol;
const ALL = 0xffff_ffff;
const BLOCK_TOKENS = 2;

const bytesFrom = (first: number, count: number) =>
  Uint8Array.from({ length: count }, (_, i) => (first + i) & 0xff);
const text = new TextEncoder();
const A = Uint8Array.from(sequence(0xa0));
const KEYS = new Uint8Array([...bytesFrom(0xc0, 16), ...bytesFrom(0x50, 16)]);
const TOKENS = new Uint8Array(Uint32Array.of(1, 2, 3, 70_000, 0xfffffffe).buffer);

const byTokens: protocol.LookupRequest = {
  ...{ layer: ALL, tiers: 14, kind: 0, flags: 63, deadlineMs: 250, holdMs: 10_000, readers: 2 },
  ...{ namespace: 1, parent: A, source: "prefill-0", count: 5, items: TOKENS },
  media: [
    { position: 16, name: text.encode("image-01") },
    { position: 40, name: text.encode("img") },
  ],
};
const byKeys: protocol.LookupRequest = {
  ...{ layer: ALL, tiers: 0, kind: 3, flags: 3, deadlineMs: 0, holdMs: 0, readers: 0 },
  ...{ namespace: 0, parent: null, source: "", count: 2, items: KEYS, media: [] },
};

function lookupCase(golden: string, id: number, request: protocol.LookupRequest): Case {
  return {
    golden,
    direction: "requests",
    encode: (output) => protocol.encodeLookupRequest(output, id, request),
    decode(frame) {
      const seen = protocol.decodeLookupRequest(frame, BLOCK_TOKENS, CAPACITY);
      return seen.ok ? { ...seen.value, items: new Uint8Array(seen.value.items) } : seen.refusal;
    },
    value: request,
  };
}

interface Answer {
  readonly reply: protocol.LookupReply;
  readonly best: number[];
  readonly digests: number[] | null;
}

function answerCase(golden: string, id: number, answer: Answer): Case {
  const { reply, best, digests } = answer;
  return {
    golden,
    direction: "replies",
    encode(output) {
      // A partial answer has neither tiers nor digests, even if they are given.
      const tiers = best.length > 0 ? best : [2, 4, 0];
      const given = digests === null ? null : Uint8Array.from(digests);
      const { length } = tiers;
      protocol.encodeLookupReply(output, id, reply, length, Uint8Array.from(tiers), given);
    },
    decode(frame) {
      const into = new Uint8Array(CAPACITY);
      const names = digests === null ? null : new Uint8Array(CAPACITY * 32);
      const seen = protocol.decodeLookupReply(frame, into, names);
      if (isRefusal(seen)) return seen;
      const { count } = frame;
      const named = names === null ? null : [...names.subarray(0, 32 * count)];
      return { reply: seen, best: [...into.subarray(0, count)], digests: named };
    },
    value: answer,
  };
}

function commandCase(golden: string, direction: protocol.FrameDirection, json: string): Case {
  const encode =
    direction === "requests" ? protocol.encodeCommandRequest : protocol.encodeCommandReply;
  return {
    golden,
    direction,
    encode: (output) => encode(output, 37, text.encode(json)),
    decode: (frame) => unwrap(protocol.decodeCommand(frame)),
    value: text.encode(json),
  };
}

const namespaceRequest: protocol.NamespaceRequest = {
  loraDigest: Uint8Array.from(sequence(0x01)),
  salt: "alice",
};
const HOLDS = { holds: [{ id: 9 }, { id: 10 }] };
const joinRequest: protocol.JoinRequest = { engine: bytesFrom(0x70, 16), role: 1 };
const announced: protocol.AnnounceRequest = {
  ...{ layer: ALL, ttlMs: 500, kind: 3, flags: 1, namespace: 0, count: 2, items: KEYS },
};
const acquired = batchOf({ digests: A }, ALL);
const acquireOptions = { tiers: 0, deadlineMs: 0, stopAtMiss: true, namespace: 2 };

export const ENGINE_CASES: readonly Case[] = [
  {
    golden: "namespace.request",
    direction: "requests",
    encode: (output) => protocol.encodeNamespaceRequest(output, 31, namespaceRequest),
    decode: (frame) => unwrap(protocol.decodeNamespaceRequest(frame)),
    value: namespaceRequest,
  },
  {
    golden: "namespace.reply",
    direction: "replies",
    encode: (output) => protocol.encodeNamespaceReply(output, 31, { namespace: 1, namespaceId: A }),
    decode: (frame) => unwrap(protocol.decodeNamespaceReply(frame)),
    value: { namespace: 1, namespaceId: A },
  },
  {
    golden: "join.request",
    direction: "requests",
    encode: (output) => protocol.encodeJoinRequest(output, 32, joinRequest),
    decode: (frame) => unwrap(protocol.decodeJoinRequest(frame)),
    value: joinRequest,
  },
  {
    golden: "join.reply",
    direction: "replies",
    encode: (output) => protocol.encodeJoinReply(output, 32, { members: 3 }),
    decode: (frame) => unwrap(protocol.decodeJoinReply(frame)),
    value: { members: 3 },
  },
  lookupCase("lookup.tokens.request", 33, byTokens),
  lookupCase("lookup.short-keys.request", 34, byKeys),
  answerCase("lookup.reply", 34, {
    reply: { leading: 2, ready: 1, hold: 9, flags: 4, announced: 1 },
    best: [2, 4, 0],
    digests: null,
  }),
  answerCase("lookup.digests.reply", 33, {
    reply: { leading: 1, ready: 1, hold: 10, flags: 0, announced: 0 },
    best: [2, 0],
    digests: [...A, ...sequence(0x40)],
  }),
  answerCase("lookup.partial.reply", 33, {
    reply: { leading: 2, ready: 1, hold: 10, flags: 1, announced: 1 },
    best: [],
    digests: null,
  }),
  {
    golden: "unhold.request",
    direction: "requests",
    encode: (output) => protocol.encodeUnholdRequest(output, 35, HOLDS, true),
    decode: (frame) => unwrap(protocol.decodeUnholdRequest(frame, CAPACITY)),
    value: HOLDS,
  },
  outcomesCase("unhold.reply", Op.unhold, 35, [Outcome.ok, Outcome.stale]),
  {
    golden: "announce.request",
    direction: "requests",
    encode: (output) => protocol.encodeAnnounceRequest(output, 36, announced),
    decode(frame) {
      const seen = protocol.decodeAnnounceRequest(frame, CAPACITY);
      return seen.ok ? { ...seen.value, items: new Uint8Array(seen.value.items) } : seen.refusal;
    },
    value: announced,
  },
  outcomesCase("announce.reply", Op.announce, 36, [Outcome.ok, Outcome.present]),
  commandCase("command.request", "requests", '{"prune":{"session":"77"}}'),
  commandCase("command.reply", "replies", '{"state":"done"}'),
  {
    golden: "acquire.namespace.request",
    direction: "requests",
    encode: (output) => protocol.encodeAcquireRequest(output, 39, acquireOptions, acquired),
    decode(frame) {
      const options = { tiers: 0, deadlineMs: 0, stopAtMiss: false, namespace: 0 };
      const run = (into: Columns) => protocol.decodeAcquireRequest(frame, options, into);
      return fill(run, ["digests"], true, () => options);
    },
    value: { ...plain(acquired, ["digests"], true), ...acquireOptions },
  },
];
