import * as protocol from "../../src/engine/protocol/index.ts";
import { encodeManifest } from "../../src/identity/index.ts";
import { ENGINE_CASES } from "./protocol-engine-cases.ts";
import { GPU_CASES } from "./protocol-gpu-cases.ts";
import { SESSION_CASES } from "./protocol-session-cases.ts";
import {
  batchOf,
  CAPACITY,
  type Case,
  type Columns,
  fill,
  outcomesCase,
  plain,
  sequence,
  unwrap,
} from "./protocol-support.ts";

/** The frames of the golden folder, each with its value, its encoder and its decoder. */

const { Op, Outcome } = protocol;

const A = sequence(0xa0);
const B = sequence(0x40);
const C = sequence(0x01);
const ZERO = new Array<number>(32).fill(0);
const ALL = 0xffff_ffff;
const BLOCK = ["digests", "parents", "aliasLo", "aliasHi", "bytes", "flags"] as const;
const SLOT = ["outcome", "slot", "generation", "bytes", "offset"] as const;

function identifyCase(name: string, id: number, request: protocol.IdentifyRequest): Case {
  return {
    golden: `identify.${name}.request`,
    direction: "requests",
    encode: (output) => protocol.encodeIdentifyRequest(output, id, request),
    decode(frame) {
      const into = protocol.emptyIdentifyRequest();
      const refused = protocol.decodeIdentifyRequest(frame, 1, 1 << 20, into);
      return refused ?? { ...into, items: new Uint8Array(into.items) };
    },
    value: request,
  };
}

function blocksCase(
  golden: string,
  encode: (output: protocol.Output, batch: Columns) => void,
  decode: (
    frame: protocol.Frame,
    into: Columns,
    options: { session: bigint; namespace?: number },
  ) => protocol.Refusal | null,
  layer: number,
  given: Parameters<typeof batchOf>[0],
  session: bigint,
  rest: { namespace?: number } = {},
): Case {
  const batch = batchOf(given, layer);
  return {
    golden,
    direction: "requests",
    encode: (output) => encode(output, batch),
    decode(frame) {
      const options = { session: 0n };
      return fill(
        (into) => decode(frame, into, options),
        BLOCK,
        true,
        () => options,
      );
    },
    value: { ...plain(batch, BLOCK, true), session, ...rest },
  };
}

function handlesCase(
  golden: string,
  op: 7 | 9 | 29,
  id: number,
  handle: number[],
  noReply: boolean,
): Case {
  const batch = batchOf({ slot: [handle[0]!], generation: [handle[1]!] });
  return {
    golden,
    direction: "requests",
    encode: (output) => protocol.encodeHandlesRequest(output, op, id, batch, noReply),
    decode: (frame) =>
      fill((into) => protocol.decodeHandlesRequest(frame, into), ["slot", "generation"], false),
    value: plain(batch, ["slot", "generation"]),
  };
}

function aliasCase(golden: string, id: number, kind: 0 | 1, layer: number, alias: number[]): Case {
  const batch = batchOf({ digests: A, aliases: alias }, layer);
  return {
    golden,
    direction: "requests",
    encode: (output) => protocol.encodeAliasRequest(output, id, { kind }, batch),
    decode(frame) {
      const options: protocol.AliasOptions = { kind: 0 };
      const run = (into: Columns) => protocol.decodeAliasRequest(frame, options, into);
      return fill(run, ["digests", "aliases"], true, () => options);
    },
    value: { ...plain(batch, ["digests", "aliases"], true), kind },
  };
}

const hello: protocol.HelloRequest = {
  versionMin: 1,
  versionMax: 1,
  features: 0,
  name: "golden",
  manifest: encodeManifest({
    model: "demo/model",
    weightsRevision: null,
    dtype: "bfloat16",
    quantisation: null,
    layout: "test:flat",
    blockTokens: 16,
    tpSize: 1,
    tpRank: 0,
    ppSize: 1,
    ppRank: 0,
    loraDigest: null,
    tenantSalt: "t",
    extra: { b: "2", a: "é" },
  }),
};

const helloReply: protocol.HelloReply = {
  version: 1,
  checksumAlgorithm: 1,
  features: 0,
  namespaceId: Uint8Array.from(A),
  incarnation: 0x1122334455667788n,
  arenaBytes: 5 * 2 ** 30,
  arenaReadyBytes: 2 ** 30,
  blockBytesMax: 16 * 2 ** 20,
  frameBytesMax: 2 ** 20,
  itemsMax: 4096,
  handlesMax: 65_536,
  leaseMs: 30_000,
  blockTokens: 16,
};

const encoder = new TextEncoder();
const checkedPing = (frame: protocol.Frame) =>
  protocol.checkPing(frame) ?? { payload: [...frame.bytes.subarray(frame.body, frame.end)] };
const HASH = [0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe];
const TOKENS = new Uint8Array(Uint32Array.of(1, 2, 3, 70_000, 0xfffffffe).buffer);
const reserved = batchOf({
  outcome: [Outcome.ok, Outcome.present],
  slot: [12, 0],
  generation: [3, 0],
  bytes: [262_144, 0],
  offset: [5 * 2 ** 30 - 262_144, 0],
});
const acquired = batchOf({
  outcome: [Outcome.ok, Outcome.miss],
  slot: [12, 0],
  generation: [3, 0],
  bytes: [262_144, 0],
  offset: [5 * 2 ** 30 - 262_144, 0],
  checksum: [0x0123456789abcdefn, 0n],
});
const committed = batchOf({
  slot: [12, 13],
  generation: [3, 1],
  checksum: [0x0123456789abcdefn, 0n],
  flags: [1, 0],
});
const MACS = Uint8Array.from([...sequence(0x70).slice(0, 16), ...new Uint8Array(16)]);
const sealed = batchOf({
  slot: [12, 13],
  generation: [3, 1],
  checksum: [0x0123456789abcdefn, 0n],
  flags: [3, 2],
  mac: [...sequence(0x70).slice(0, 16), ...sequence(0x20).slice(0, 16)],
});
const acquiredWithMac = batchOf({
  mac: MACS,
  outcome: [Outcome.ok, Outcome.miss],
  slot: [12, 0],
  generation: [3, 0],
  bytes: [262_144, 0],
  offset: [5 * 2 ** 30 - 262_144, 0],
  checksum: [0x0123456789abcdefn, 0n],
});
const pair = batchOf({ digests: [...A, ...B] }, ALL);
const first = batchOf({ digests: A }, ALL);
const acquireOptions = { tiers: 2, deadlineMs: 250, stopAtMiss: true, namespace: 0 };
export const CASES: readonly Case[] = [
  {
    golden: "hello.request",
    direction: "requests",
    encode: (output) => protocol.encodeHelloRequest(output, 1, hello),
    decode: (frame) => unwrap(protocol.decodeHelloRequest(frame)),
    value: hello,
  },
  {
    golden: "hello.reply",
    direction: "replies",
    encode: (output) => protocol.encodeHelloReply(output, 1, helloReply),
    decode: (frame) => unwrap(protocol.decodeHelloReply(frame)),
    value: helloReply,
  },
  {
    golden: "ping.request",
    direction: "requests",
    encode: (output) => protocol.encodePingRequest(output, 2, encoder.encode("pingpong")),
    decode: checkedPing,
    value: { payload: [...encoder.encode("pingpong")] },
  },
  {
    golden: "ping.reply",
    direction: "replies",
    encode(output) {
      const frame = protocol.emptyFrame();
      const bytes = encoder.encode("..pingpong");
      Object.assign(frame, { requestId: 2, bytes, body: 2, end: 10 });
      protocol.encodePingReply(output, frame);
    },
    decode: checkedPing,
    value: { payload: [...encoder.encode("pingpong")] },
  },
  {
    golden: "ping.no-reply.request",
    direction: "requests",
    encode: (output) => protocol.encodePingRequest(output, 3, new Uint8Array(0), true),
    decode: checkedPing,
    value: { payload: [] },
  },
  identifyCase("tokens", 4, { kind: 0, layer: ALL, count: 5, items: TOKENS }),
  identifyCase("chain-keys", 5, { kind: 1, layer: ALL, count: 1, items: Uint8Array.from(C) }),
  identifyCase("engine-hashes", 6, {
    kind: 2,
    layer: 7,
    count: 2,
    items: Uint8Array.from([...HASH, 1, 0, 0, 0, 0, 0, 0, 0]),
  }),
  identifyCase("short-keys", 38, {
    kind: 3,
    layer: ALL,
    count: 2,
    items: Uint8Array.from([0xc0, 0x50].flatMap((at) => sequence(at).slice(0, 16))),
  }),
  {
    golden: "identify.reply",
    direction: "replies",
    encode: (output) =>
      protocol.encodeIdentifyReply(output, 6, batchOf({ digests: [...A, ...ZERO] })),
    decode: (frame) =>
      fill((into) => protocol.decodeIdentifyReply(frame, into), ["digests"], false),
    value: { count: 2, digests: [...A, ...ZERO] },
  },
  {
    golden: "match.request",
    direction: "requests",
    encode: (output) => protocol.encodeMatchRequest(output, 7, { tiers: 6 }, pair),
    decode(frame) {
      const options: protocol.MatchOptions = { tiers: 0 };
      const run = (into: Columns) => protocol.decodeMatchRequest(frame, options, into);
      return fill(run, ["digests"], true, () => options);
    },
    value: { ...plain(pair, ["digests"], true), tiers: 6 },
  },
  {
    golden: "match.reply",
    direction: "replies",
    encode: (output) => protocol.encodeMatchReply(output, 7, 2, 1, Uint8Array.of(2, 0, 9)),
    decode(frame) {
      const best = new Uint8Array(CAPACITY);
      const leading = protocol.decodeMatchReply(frame, best);
      if (typeof leading !== "number") return leading;
      return { leading, best: [...best.subarray(0, frame.count)] };
    },
    value: { leading: 1, best: [2, 0] },
  },
  blocksCase(
    "reserve.request",
    (output, batch) => protocol.encodeReserveRequest(output, 8, { session: 77n }, batch),
    (frame, into, options) => protocol.decodeReserveRequest(frame, options, into),
    ALL,
    {
      digests: [...A, ...B],
      parents: [...ZERO, ...A],
      aliasLo: [0x76543210, 0],
      aliasHi: [0xfedcba98, 0],
      bytes: [262_144, 262_144],
      flags: [2, 1],
    },
    77n,
    { namespace: 0 },
  ),
  {
    golden: "reserve.reply",
    direction: "replies",
    encode: (output) => protocol.encodeReserveReply(output, 8, reserved),
    decode: (frame) => fill((into) => protocol.decodeReserveReply(frame, into), SLOT, false),
    value: plain(reserved, SLOT),
  },
  {
    golden: "commit.request",
    direction: "requests",
    encode: (output) => protocol.commitRequest.encode(output, 9, committed),
    decode(frame) {
      const run = (into: Columns) => protocol.commitRequest.decode(frame, into);
      return fill(run, ["slot", "generation", "checksum", "flags"], false);
    },
    value: plain(committed, ["slot", "generation", "checksum", "flags"]),
  },
  outcomesCase("commit.reply", Op.commit, 9, [Outcome.ok, Outcome.corrupt]),
  handlesCase("abort.request", Op.abort, 10, [13, 1], false),
  outcomesCase("abort.reply", Op.abort, 10, [Outcome.stale]),
  {
    golden: "acquire.request",
    direction: "requests",
    encode: (output) => protocol.encodeAcquireRequest(output, 11, acquireOptions, pair),
    decode(frame) {
      const options = { tiers: 0, deadlineMs: 0, stopAtMiss: false, namespace: 9 };
      const run = (into: Columns) => protocol.decodeAcquireRequest(frame, options, into);
      return fill(run, ["digests"], true, () => options);
    },
    value: { ...plain(pair, ["digests"], true), ...acquireOptions },
  },
  {
    golden: "commit.mac.request",
    direction: "requests",
    encode: (output) => protocol.commitRequestWithMacs.encode(output, 40, sealed),
    decode(frame) {
      const run = (into: Columns) => protocol.commitRequestWithMacs.decode(frame, into);
      return fill(run, ["slot", "generation", "checksum", "flags", "mac"], false);
    },
    value: plain(sealed, ["slot", "generation", "checksum", "flags", "mac"]),
  },
  {
    golden: "acquire.mac.reply",
    direction: "replies",
    encode: (output) => protocol.acquireReplyWithMacs.encode(output, 41, acquiredWithMac),
    decode(frame) {
      const run = (into: Columns) => protocol.acquireReplyWithMacs.decode(frame, into);
      return fill(run, [...SLOT, "checksum", "mac"], false);
    },
    value: plain(acquiredWithMac, [...SLOT, "checksum", "mac"]),
  },
  {
    golden: "acquire.reply",
    direction: "replies",
    encode: (output) => protocol.acquireReply.encode(output, 11, acquired),
    decode(frame) {
      const run = (into: Columns) => protocol.acquireReply.decode(frame, into);
      return fill(run, [...SLOT, "checksum"], false);
    },
    value: plain(acquired, [...SLOT, "checksum"]),
  },
  handlesCase("release.request", Op.release, 12, [12, 3], true),
  outcomesCase("release.reply", Op.release, 12, [Outcome.ok]),
  handlesCase("report.request", Op.report, 60, [12, 3], false),
  outcomesCase("report.reply", Op.report, 60, [Outcome.corrupt]),
  blocksCase(
    "gpu-stored.request",
    (output, batch) => protocol.encodeGpuStoredRequest(output, 13, batch),
    (frame, into) => protocol.decodeGpuStoredRequest(frame, into),
    7,
    { digests: A, parents: B, aliasLo: [0x1234], aliasHi: [0], bytes: [262_144], flags: [2] },
    0n,
  ),
  outcomesCase("gpu-stored.reply", Op.gpuStored, 13, [Outcome.ok]),
  {
    golden: "gpu-evicted.request",
    direction: "requests",
    encode: (output) => protocol.encodeGpuEvictedRequest(output, 14, first),
    decode: (frame) =>
      fill((into) => protocol.decodeGpuEvictedRequest(frame, into), ["digests"], true),
    value: plain(first, ["digests"], true),
  },
  outcomesCase("gpu-evicted.reply", Op.gpuEvicted, 14, [Outcome.miss]),
  ...SESSION_CASES,
  ...GPU_CASES,
  ...ENGINE_CASES,
  aliasCase("alias.engine-hash.request", 18, 0, ALL, [...HASH, ...ZERO.slice(8)]),
  aliasCase("alias.sha256.request", 19, 1, 7, C),
  outcomesCase("alias.reply", Op.alias, 19, [Outcome.ok]),
  {
    golden: "error.reply",
    direction: "replies",
    encode(output) {
      const text = "MATCH comes after HELLO: greet first";
      protocol.encodeErrorReply(output, Op.match, 20, protocol.FrameStatus.notGreeted, text);
    },
    decode: (frame) => unwrap(protocol.decodeErrorReply(frame)),
    value: { status: 5, text: "MATCH comes after HELLO: greet first" },
  },
];
