import * as protocol from "../../src/engine/protocol/index.ts";
import {
  batchOf,
  type Case,
  type Columns,
  fill,
  outcomesCase,
  plain,
  sequence,
  unwrap,
} from "./protocol-support.ts";

/** The golden frames about sessions. */

const { Op, Outcome } = protocol;
const ALL = 0xffff_ffff;

function sessionCase(golden: string, op: 13 | 14, id: number): Case {
  return {
    golden,
    direction: "requests",
    encode: (output) => protocol.sessionRequests[op].encode(output, id, { session: 77n }),
    decode(frame) {
      const options = { session: 0n };
      return protocol.sessionRequests[op].fill(frame, options) ?? options;
    },
    value: { session: 77n },
  };
}

const second = batchOf({ digests: sequence(0x40) }, ALL);
const listRequest: protocol.SessionListRequest = { session: 0n, after: 4100, max: 2 };
const listReply: protocol.SessionListReply = {
  next: 4103,
  sessions: [
    {
      session: 77n,
      idleMs: 90_000,
      ramBlocks: 3,
      ramBytes: 786_432,
      ssdBlocks: 5,
      ssdBytes: 1_310_720,
    },
    {
      session: 2n ** 64n - 1n,
      idleMs: 0,
      ramBlocks: 0,
      ramBytes: 0,
      ssdBlocks: 2 ** 33,
      ssdBytes: 2 ** 52,
    },
  ],
};
const status: protocol.SessionStatus = { outcome: 0, blocks: 3, tokens: 48, bytes: 786_432 };

export const SESSION_CASES: readonly Case[] = [
  {
    golden: "session-commit.request",
    direction: "requests",
    encode: (output) => protocol.encodeSessionCommitRequest(output, 15, { session: 77n }, second),
    decode(frame) {
      const options = { session: 0n };
      const run = (into: Columns) => protocol.decodeSessionCommitRequest(frame, options, into);
      return fill(run, ["digests"], true, () => options);
    },
    value: { ...plain(second, ["digests"], true), session: 77n },
  },
  outcomesCase("session-commit.reply", Op.sessionCommit, 15, [Outcome.ok]),
  sessionCase("session-release.request", Op.sessionRelease, 16),
  outcomesCase("session-release.reply", Op.sessionRelease, 16, [Outcome.ok]),
  sessionCase("session-status.request", Op.sessionStatus, 17),
  {
    golden: "session-status.reply",
    direction: "replies",
    encode: (output) => protocol.encodeSessionStatusReply(output, 17, status),
    decode: (frame) => unwrap(protocol.decodeSessionStatusReply(frame)),
    value: status,
  },
  {
    golden: "session-list.request",
    direction: "requests",
    encode: (output) => protocol.encodeSessionListRequest(output, 21, listRequest),
    decode(frame) {
      const into = { session: 0n, after: 0, max: 0 };
      return protocol.decodeSessionListRequest(frame, into) ?? into;
    },
    value: listRequest,
  },
  {
    golden: "session-list.reply",
    direction: "replies",
    encode: (output) => protocol.encodeSessionListReply(output, 21, listReply),
    decode: (frame) => unwrap(protocol.decodeSessionListReply(frame)),
    value: listReply,
  },
];
