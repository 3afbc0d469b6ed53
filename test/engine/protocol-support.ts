import * as protocol from "../../src/engine/protocol/index.ts";

/**
 * Shared by the tests of the codec: batches with every column, golden bytes, decoding of frames.
 */

export interface Columns {
  count: number;
  layer: number;
  digests: Uint8Array;
  parents: Uint8Array;
  aliases: Uint8Array;
  aliasLo: Uint32Array;
  aliasHi: Uint32Array;
  bytes: Uint32Array;
  flags: Uint32Array;
  outcome: Uint32Array;
  slot: Uint32Array;
  generation: Uint32Array;
  offset: Float64Array;
  checksum: BigUint64Array;
  mac: Uint8Array;
}

export const CAPACITY = 64;

export function columns(capacity = CAPACITY): Columns {
  const u32 = () => new Uint32Array(capacity).fill(0xdeadbeef);
  const keys = () => new Uint8Array(32 * capacity).fill(0xee);
  return {
    count: 0,
    layer: 0,
    digests: keys(),
    parents: keys(),
    aliases: keys(),
    aliasLo: u32(),
    aliasHi: u32(),
    bytes: u32(),
    flags: u32(),
    outcome: u32(),
    slot: u32(),
    generation: u32(),
    offset: new Float64Array(capacity).fill(-1),
    checksum: new BigUint64Array(capacity).fill(0xdeadn),
    mac: new Uint8Array(16 * capacity).fill(0xee),
  };
}

export type Column = Exclude<keyof Columns, "count" | "layer">;
/** Columns with more than one entry per item. */
const WIDTHS: Partial<Record<Column, number>> = { digests: 32, parents: 32, aliases: 32, mac: 16 };

/** The first `count` entries of the named columns, as plain values. */
export function plain(batch: Columns, names: readonly Column[], layer = false) {
  const out: Record<string, unknown> = { count: batch.count };
  if (layer) out.layer = batch.layer;
  for (const name of names) {
    const width = WIDTHS[name] ?? 1;
    out[name] = Array.from<number | bigint>(
      batch[name].slice(0, batch.count * width) as Uint8Array,
    );
  }
  return out;
}

/** A batch with the given entries; columns not named are zero. */
export function batchOf(given: Partial<Record<Column, ArrayLike<number | bigint>>>, layer = 0) {
  const batch = columns();
  for (const name of Object.keys(batch) as (keyof Columns)[])
    if (name === "checksum") batch.checksum.fill(0n);
    else if (name !== "count" && name !== "layer") batch[name].fill(0);
  batch.layer = layer;
  for (const name of Object.keys(given) as Column[]) {
    const values = Array.from(given[name]!);
    (batch[name] as { set(values: ArrayLike<number | bigint>): void }).set(values);
    batch.count = values.length / (WIDTHS[name] ?? 1);
  }
  return batch;
}

export function isRefusal(value: unknown): value is protocol.Refusal {
  return typeof value === "object" && value !== null && "fatal" in value && "text" in value;
}

export interface Case {
  readonly golden: string;
  readonly direction: protocol.FrameDirection;
  encode(output: protocol.Output): void;
  /** The decoded value in plain form, or a refusal. */
  decode(frame: protocol.Frame): unknown;
  /** The value that `decode` returns for the golden bytes. */
  readonly value: unknown;
}

/** Bytes of a golden file: hex, with comments from `#` to the end of the line. */
export async function goldenBytes(name: string): Promise<Uint8Array> {
  const text = await Bun.file(new URL(`golden/${name}.hex`, import.meta.url)).text();
  return Uint8Array.fromHex(text.replace(/#.*$/gm, "").replace(/\s+/g, ""));
}

/**
 * Every value that the reader yields for these bytes, decoded inside the sink, then the fault if
 * any.
 */
export function decodeAll(bytes: Uint8Array, frames: Case): unknown[] {
  const reader = protocol.createFrameReader({
    direction: frames.direction,
    frameBytesMax: protocol.DEFAULT_LIMITS.frameBytesMax,
  });
  const seen: unknown[] = [];
  const fault = reader.push(bytes, (frame) => {
    seen.push(frames.decode(frame));
    return true;
  });
  if (fault !== null) seen.push(fault);
  return seen;
}

/** Runs a decoder that fills columns. `extra` is its other result. */
export function fill(
  run: (into: Columns) => protocol.Refusal | null,
  names: readonly Column[],
  layer: boolean,
  extra: () => object = () => ({}),
) {
  const into = columns();
  const refused = run(into);
  return refused ?? { ...plain(into, names, layer), ...extra() };
}

export function unwrap<Value>(result: protocol.Decoded<Value>): Value | protocol.Refusal {
  return result.ok ? result.value : result.refusal;
}

/** 32 ascending bytes. */
export const sequence = (first: number) => Array.from({ length: 32 }, (_, i) => (first + i) & 0xff);

/** An answer with outcomes. */
export function outcomesCase(
  golden: string,
  op: protocol.OutcomeOp,
  id: number,
  outcome: number[],
): Case {
  return {
    golden,
    direction: "replies",
    encode: (output) => protocol.encodeOutcomesReply(output, op, id, batchOf({ outcome })),
    decode: (frame) =>
      fill((into) => protocol.decodeOutcomesReply(frame, into), ["outcome"], false),
    value: { count: outcome.length, outcome },
  };
}
