import { assert, unreachable } from "../../core/index.ts";
import { Tier } from "../../store/blocks/index.ts";
import type { PeerAnswer, PeerFound, PeerHas } from "../messages.ts";
import { beginMessage, readEnvelope, readItems, writeItems } from "./envelope.ts";
import { readHello, writeHello } from "./hello.ts";
import {
  ANSWER_BYTES_MAX,
  FILTER_BYTES_MAX,
  FIND_NAMES_MAX,
  FOUND_MAX,
  ITEMS_MAX,
  KEY_BYTES,
  Op,
  PAYLOAD_BYTES_MAX,
} from "./layout.ts";
import { wireMs } from "./requests.ts";
import { readWhy, writeWhy } from "./why.ts";
import { WireReader } from "./wire-reader.ts";
import type { WireWriter } from "./wire-writer.ts";

export type DecodedAnswer =
  | { readonly ok: true; readonly answer: PeerAnswer }
  /** For people; nothing of what the peer wrote is in it. */
  | { readonly ok: false; readonly why: string };

const TIERS = Tier.ram | Tier.ssd;
/** A record's length, tiers, bytes, generation, checksum. */
const HAS_BYTES_MIN = 2 + 1 + 8 + 8 + 8;
const FOUND_BYTES_MIN = HAS_BYTES_MIN + KEY_BYTES + KEY_BYTES + 4;

/** The message, without its length. Throws where a cap of the wire is exceeded. */
export function encodeAnswer(answer: PeerAnswer): Uint8Array {
  const bytes = writeAnswer(answer).done();
  assert(bytes.length <= ANSWER_BYTES_MAX, "an answer keeps to its cap");
  return bytes;
}

function writeAnswer(answer: PeerAnswer): WireWriter {
  switch (answer.op) {
    case "hello": {
      const writer = beginMessage(Op.helloAnswer);
      return writer.record(32, () => writeHello(writer, answer.hello)).u32(0);
    }
    case "has": {
      const { blocks } = answer;
      assert(blocks.length <= ITEMS_MAX, `at most ${ITEMS_MAX} blocks are told of at once`);
      const writer = beginMessage(Op.hasAnswer, 64 + blocks.length * HAS_BYTES_MIN).u32(0);
      writeItems(writer, blocks, (has) => writeHas(writer, has));
      return writer;
    }
    case "find": {
      assert(answer.found.length <= FIND_NAMES_MAX, `at most ${FIND_NAMES_MAX} names are told of`);
      const writer = beginMessage(Op.findAnswer).u32(0);
      writeItems(writer, answer.found, (found) => {
        assert(found.length <= FOUND_MAX, `a name leads to ${FOUND_MAX} blocks at most`);
        writeItems(writer, found, (block) => writeFound(writer, block));
      });
      return writer;
    }
    case "summary": {
      const { version, filter } = answer;
      const writer = beginMessage(Op.summaryAnswer, 64 + (filter?.length ?? 0));
      const write = () => {
        writer.u64(version).u8(filter === null ? 0 : 1);
        if (filter !== null) writer.u32(filter.length).raw(filter);
      };
      assert((filter?.length ?? 0) <= FILTER_BYTES_MAX, "a filter keeps to its cap");
      return writer.record(32, write).u32(0);
    }
    case "busy": {
      const writer = beginMessage(Op.busyAnswer);
      return writer.record(32, () => writer.u32(wireMs(answer.retryAfterMs))).u32(0);
    }
    case "refused": {
      const writer = beginMessage(Op.refusedAnswer);
      return writer.record(32, () => writeWhy(writer, answer.why)).u32(0);
    }
    default:
      return unreachable(answer satisfies never, "an answer");
  }
}

function writeHas(writer: WireWriter, has: PeerHas): void {
  writer.u8(has.tiers).size(has.bytes).u64(has.generation).u64(has.checksum);
}

function readHas(reader: WireReader): PeerHas {
  const tiers = reader.u8("tiers");
  if (!reader.newer && (tiers & ~TIERS) !== 0) reader.fail("tiers: a bit that is not known here");
  return {
    tiers: tiers & TIERS,
    bytes: reader.size(PAYLOAD_BYTES_MAX, "bytes"),
    generation: reader.u64("generation"),
    checksum: reader.u64("checksum"),
  };
}

function writeFound(writer: WireWriter, found: PeerFound): void {
  writer.fixed(found.namespace, KEY_BYTES).fixed(found.digest, KEY_BYTES).u32(found.layer);
  writeHas(writer, found);
}

function readFound(reader: WireReader): PeerFound {
  return {
    namespace: reader.bytes(KEY_BYTES, "namespace"),
    digest: reader.bytes(KEY_BYTES, "digest"),
    layer: reader.u32("layer"),
    ...readHas(reader),
  };
}

/** Reads a whole message. Never throws; nothing of `bytes` is referred to by what it gives. */
export function decodeAnswer(bytes: Uint8Array): DecodedAnswer {
  if (bytes.length > ANSWER_BYTES_MAX) return { ok: false, why: "answer: too long" };
  const reader = new WireReader(bytes);
  const answer = readAnswer(reader);
  reader.end("answer");
  if (reader.ok && answer !== null) return { ok: true, answer };
  return { ok: false, why: reader.why ?? "operation: not known here" };
}

function readAnswer(reader: WireReader): PeerAnswer | null {
  const op = readEnvelope(reader);
  if (!reader.ok) return null;
  switch (op) {
    case Op.hasAnswer: {
      reader.record(32, "has", () => null);
      const read = () => readHas(reader);
      return { op: "has", blocks: readItems(reader, ITEMS_MAX, HAS_BYTES_MIN, "block", read) };
    }
    case Op.findAnswer: {
      reader.record(32, "find", () => null);
      const read = () =>
        readItems(reader, FOUND_MAX, FOUND_BYTES_MIN, "found", () => readFound(reader));
      return { op: "find", found: readItems(reader, FIND_NAMES_MAX, 6, "name", read) };
    }
    default:
      return readSingle(reader, op);
  }
}

/** Answers that are one record. */
function readSingle(reader: WireReader, op: number): PeerAnswer | null {
  const answer = reader.record(32, "answer", (): PeerAnswer | null => {
    switch (op) {
      case Op.helloAnswer:
        return { op: "hello", hello: readHello(reader) };
      case Op.summaryAnswer:
        return readSummary(reader);
      case Op.busyAnswer:
        return { op: "busy", retryAfterMs: reader.u32("retry after") };
      case Op.refusedAnswer:
        return { op: "refused", why: readWhy(reader) };
      default:
        reader.fail("operation: not known here");
        return null;
    }
  });
  reader.count(0, 1, "items");
  return answer;
}

function readSummary(reader: WireReader): PeerAnswer {
  const version = reader.u64("version");
  const given = reader.u8("filter");
  if (given > 1) reader.fail("filter: neither there nor not");
  if (given !== 1) return { op: "summary", version, filter: null };
  const length = reader.count(FILTER_BYTES_MAX, 1, "filter");
  return { op: "summary", version, filter: reader.bytes(length, "filter") };
}
