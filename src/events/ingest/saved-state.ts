import { yieldToLoop } from "../../core/index.ts";
import { MsgpackReader, MsgpackWriter, Unreadable } from "../msgpack.ts";
import type { OrphanBlock } from "./engine-blocks.ts";
import { type BlockName, blockNameOf, type KnownBlock } from "./known-blocks.ts";
import type { TranslatorState } from "./translator.ts";

/** Saved state of an ingest, as of the batch before `next`. */
export interface SavedIngest extends TranslatorState {
  /** Number of the next batch; at least 1. */
  readonly next: number;
  /**
   * XXH3 of the batch before it, because another run of the engine has a different batch with that
   * number.
   */
  readonly lastPayload: bigint;
}

const MAGIC = "hearth-feed 2";
/** Blocks per page; other work runs between pages. */
const PAGE_BLOCKS = 1_024;
const NAME_BYTES_MAX = 64;
const TEXT_BYTES_MAX = 4_096;
const ITEMS_MAX = 2 ** 24;

/**
 * Yields the pages; the last one contains their number. The state must not change meanwhile.
 * Waiting multimodal blocks are omitted.
 */
export function* savedIngestPages(saved: SavedIngest): Generator<Uint8Array> {
  let [knownPages, orphanPages] = [0, 0];
  for (const known of paged(saved.known)) {
    yield pageOf(known, writeKnown);
    knownPages++;
  }
  for (const orphans of paged(plainOrphans(saved.orphans))) {
    yield pageOf(orphans, writeOrphan);
    orphanPages++;
  }
  yield headOf(saved, knownPages, orphanPages);
}

/** Returns all pages, with a turn of the event loop after each. */
export async function encodeSavedIngest(
  saved: SavedIngest,
  signal: AbortSignal,
): Promise<Uint8Array[]> {
  const pages: Uint8Array[] = [];
  for (const page of savedIngestPages(saved)) {
    pages.push(page);
    await yieldToLoop();
    if (signal.aborted) return [];
  }
  return pages;
}

/** Returns null if the pages were not written by `encodeSavedIngest`. */
export function decodeSavedIngest(pages: readonly Uint8Array[]): SavedIngest | null {
  const last = pages.at(-1);
  const blocks = pages.slice(0, -1);
  try {
    if (last === undefined) return null;
    const { knownPages, orphanPages, ...head } = readHead(new MsgpackReader(last));
    if (blocks.length !== knownPages + orphanPages) return null;
    const known = blocks.slice(0, knownPages).flatMap((page) => readPage(page, readKnown));
    const orphans = blocks.slice(knownPages).flatMap((page) => readPage(page, readOrphan));
    return { ...head, known, orphans };
  } catch (thrown) {
    if (thrown instanceof Unreadable) return null;
    throw thrown;
  }
}

function headOf(saved: SavedIngest, knownPages: number, orphanPages: number): Uint8Array {
  const writer = new MsgpackWriter().array(11).str(MAGIC).int(saved.next).int(saved.lastPayload);
  writer
    .int(saved.blockTokens ?? 0)
    .bool(saved.isSizeSure)
    .bool(saved.isComplete);
  writer.bool(saved.hasForgottenGone);
  const groups = [...saved.groups];
  writer.array(groups.length * 2);
  for (const [index, isMain] of groups) writer.int(index).bool(isMain);
  const gone = [...saved.gone];
  writer.array(gone.length);
  for (const name of gone) writer.int(name);
  return writer.int(knownPages).int(orphanPages).done();
}

function readHead(reader: MsgpackReader) {
  if (reader.array(16) !== 11 || reader.str(NAME_BYTES_MAX) !== MAGIC) {
    throw new Unreadable("not a saved ingest state");
  }
  const next = reader.uint();
  const lastPayload = reader.u64();
  const blockTokens = reader.uint() || null;
  const [isSizeSure, isComplete] = [reader.bool(), reader.bool()];
  const hasForgottenGone = reader.bool();
  const groups: [number, boolean][] = [];
  for (let left = reader.array(ITEMS_MAX); left > 0; left -= 2) {
    groups.push([reader.uint(), reader.bool()]);
  }
  const gone = Array.from({ length: reader.array(ITEMS_MAX) }, () => readName(reader));
  const [knownPages, orphanPages] = [reader.uint(), reader.uint()];
  if (next < 1) throw new Unreadable("saved state without a batch");
  const flags = { isSizeSure, isComplete, hasForgottenGone };
  return { next, lastPayload, blockTokens, ...flags, groups, gone, knownPages, orphanPages };
}

function* paged<Item>(items: Iterable<Item>): Generator<Item[]> {
  let page: Item[] = [];
  for (const item of items) {
    page.push(item);
    if (page.length < PAGE_BLOCKS) continue;
    yield page;
    page = [];
  }
  if (page.length > 0) yield page;
}

function pageOf<Item>(
  items: readonly Item[],
  write: (writer: MsgpackWriter, item: Item) => void,
): Uint8Array {
  const writer = new MsgpackWriter().array(items.length);
  for (const item of items) write(writer, item);
  return writer.done();
}

function readPage<Item>(page: Uint8Array, read: (reader: MsgpackReader) => Item): Item[] {
  const reader = new MsgpackReader(page);
  return Array.from({ length: reader.array(PAGE_BLOCKS) }, () => read(reader));
}

/** Files of earlier releases have whole digests of engines that publish them. */
function readName(reader: MsgpackReader): BlockName {
  return reader.kind() === "bin" ? blockNameOf(reader.bin(NAME_BYTES_MAX)) : reader.u64();
}

function writeKnown(writer: MsgpackWriter, [name, block]: readonly [BlockName, KnownBlock]): void {
  writer.array(7).int(name).int(block.sequence);
  if (block.parent === null) writer.nil();
  else writer.int(block.parent);
  if (block.before === null) writer.nil();
  else writer.int(block.before);
  writeCopies(writer.int(block.salt), block.copies);
  writer.int(block.perhaps);
}

function readKnown(reader: MsgpackReader): [BlockName, KnownBlock] {
  if (reader.array(7) !== 7) throw new Unreadable("block is not a list of the expected length");
  const name = readName(reader);
  const sequence = reader.u64();
  const parent = reader.nil() ? null : reader.u64();
  const before = reader.nil() ? null : readName(reader);
  const [salt, copies] = [reader.u64(), readCopies(reader)];
  return [name, { sequence, parent, before, salt, copies, perhaps: reader.uint() }];
}

function writeCopies(writer: MsgpackWriter, copies: KnownBlock["copies"]): void {
  writer.array(3);
  for (const count of copies) writer.int(count);
}

function readCopies(reader: MsgpackReader): KnownBlock["copies"] {
  if (reader.array(3) !== 3) throw new Unreadable("copies must have three tiers");
  return [reader.uint(), reader.uint(), reader.uint()];
}

function* plainOrphans(orphans: Iterable<OrphanBlock>): Generator<OrphanBlock> {
  for (const orphan of orphans) if (orphan.extras === null) yield orphan;
}

function writeOrphan(writer: MsgpackWriter, orphan: OrphanBlock): void {
  writer.array(6).int(orphan.name).int(orphan.parent);
  writer.array(orphan.tokens.length);
  for (const token of orphan.tokens) writer.int(token);
  writeText(writer, orphan.loraName);
  writeText(writer, orphan.salt);
  writeCopies(writer, orphan.copies);
}

function readOrphan(reader: MsgpackReader): OrphanBlock {
  if (reader.array(6) !== 6) throw new Unreadable("block is not a list of the expected length");
  const [name, parent] = [readName(reader), readName(reader)];
  const tokens = new Uint32Array(reader.array(ITEMS_MAX));
  reader.u32s(tokens);
  const [loraName, salt] = [readText(reader), readText(reader)];
  return { name, parent, tokens, extras: null, loraName, salt, copies: readCopies(reader) };
}

function writeText(writer: MsgpackWriter, text: string | null): void {
  if (text === null) writer.nil();
  else writer.str(text);
}

function readText(reader: MsgpackReader): string | null {
  return reader.nil() ? null : reader.str(TEXT_BYTES_MAX);
}
