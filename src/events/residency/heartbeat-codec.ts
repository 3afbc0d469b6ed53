import {
  type KeySpace,
  RESIDENCY_TIERS,
  type ResidencyDigest,
  type ResidencyHeartbeat,
  type ResidencySource,
} from "../../observability/activity/index.ts";
import { present, readMembers } from "../dynamo/index.ts";
import { type MsgpackReader, MsgpackWriter, Unreadable } from "../msgpack/index.ts";
import { RESIDENCY_LIMITS } from "./messages.ts";

const NAMESPACE_BYTES = 32;

export function encodeHeartbeatPayload(heartbeat: ResidencyHeartbeat): Uint8Array {
  const { lastSequence, mode, everyMs, spaces, digests } = heartbeat;
  const writer = new MsgpackWriter().map(7);
  writer.str("last_sequence").int(lastSequence);
  writer.str("mode").str(mode);
  writer.str("every_ms").int(everyMs);
  writer.str("spaces").array(spaces.length);
  for (const space of spaces) writeSpace(writer, space);
  writer.str("digests").array(digests.length);
  for (const { blocks, mix } of digests) writer.array(2).int(blocks).int(mix);
  writer.str("device_known").bool(heartbeat.isDeviceKnown);
  writer.str("is_closing").bool(heartbeat.isClosing);
  return writer.done();
}

function writeSpace(writer: MsgpackWriter, space: KeySpace): void {
  const chain = space.kind === "blocks" ? space.chain : undefined;
  writer.map(space.kind === "tokens" ? 3 : chain === undefined ? 4 : 5);
  writer.str("kind").str(space.kind);
  writer.str("model").str(space.model);
  writer.str("block_tokens").int(space.blockTokens);
  if (space.kind === "blocks") writer.str("namespace").bin(space.namespaceKey);
  if (chain !== undefined) writer.str("chain").str(chain);
}

export function readHeartbeat(reader: MsgpackReader, source: ResidencySource): ResidencyHeartbeat {
  const members = readMembers(reader, MEMBERS);
  if (!reader.isAtEnd) throw new Unreadable("more behind its end");
  return {
    source,
    lastSequence: present(members.last_sequence, "last_sequence"),
    mode: present(members.mode, "mode"),
    everyMs: present(members.every_ms, "every_ms"),
    spaces: present(members.spaces, "spaces"),
    digests: present(members.digests, "digests"),
    // Earlier versions do not say it.
    isDeviceKnown: members.device_known ?? true,
    isClosing: members.is_closing ?? false,
  };
}

const MEMBERS = {
  last_sequence: (reader: MsgpackReader) => reader.uint(),
  mode: readMode,
  every_ms: readEvery,
  spaces: readSpaces,
  digests: readDigests,
  device_known: (reader: MsgpackReader) => reader.bool(),
  is_closing: (reader: MsgpackReader) => reader.bool(),
};

function readMode(reader: MsgpackReader): ResidencyHeartbeat["mode"] {
  const mode = text(reader);
  if (mode !== "ring" && mode !== "stream") throw new Unreadable("mode is not known");
  return mode;
}

function readEvery(reader: MsgpackReader): number {
  const everyMs = reader.uint(RESIDENCY_LIMITS.everyMsMax);
  if (everyMs < RESIDENCY_LIMITS.everyMsMin) throw new Unreadable("every_ms is out of range");
  return everyMs;
}

function readSpaces(reader: MsgpackReader): readonly KeySpace[] {
  const count = reader.array(RESIDENCY_LIMITS.spacesMax);
  const spaces = Array.from({ length: count }, () => readSpace(reader));
  // A kind that a later version made up is none of ours.
  return spaces.filter((space) => space !== null);
}

function readSpace(reader: MsgpackReader): KeySpace | null {
  const members = readMembers(reader, SPACE);
  const kind = present(members.kind, "kind");
  const model = present(members.model, "model");
  const blockTokens = present(members.block_tokens, "block_tokens");
  if (blockTokens === 0) throw new Unreadable("block_tokens is 0");
  if (kind === "tokens") return { kind, model, blockTokens };
  if (kind !== "blocks") return null;
  const namespaceKey = present(members.namespace, "namespace").slice();
  if (namespaceKey.length !== NAMESPACE_BYTES) throw new Unreadable("namespace is no key");
  const space = { kind, model, blockTokens, namespaceKey } as const;
  return members.chain === undefined ? space : { ...space, chain: members.chain };
}

const SPACE = {
  kind: text,
  model: text,
  block_tokens: (reader: MsgpackReader) => reader.uint(RESIDENCY_LIMITS.blockTokensMax),
  namespace: (reader: MsgpackReader) => reader.bin(NAMESPACE_BYTES),
  chain: text,
};

function text(reader: MsgpackReader): string {
  return reader.str(RESIDENCY_LIMITS.textBytesMax);
}

function readDigests(reader: MsgpackReader): readonly ResidencyDigest[] {
  const count = reader.array(RESIDENCY_TIERS.length);
  if (count !== RESIDENCY_TIERS.length) throw new Unreadable("not a digest for each tier");
  return Array.from({ length: count }, () => {
    if (reader.array(2) !== 2) throw new Unreadable("a digest that is none");
    return { blocks: reader.uint(), mix: reader.u64() };
  });
}
