import { yieldToLoop } from "../../core/index.ts";
import {
  bool,
  type Codec,
  checked,
  converted,
  decode,
  encode,
  list,
  nullable,
  oneOf,
  text,
  tuple,
  u64,
  uint,
} from "../fields.ts";
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

/** Blocks per page; other work runs between pages. */
const PAGE_BLOCKS = 1_024;
const NAME_BYTES_MAX = 64;
const ITEMS_MAX = 2 ** 22;

const optionalHash = nullable(u64);
const optionalText = nullable(text(4_096));
const count = uint();

const name: Codec<BlockName> = {
  // Files of earlier releases have whole digests of engines that publish them.
  read: (reader) =>
    reader.kind() === "bin" ? blockNameOf(reader.bin(NAME_BYTES_MAX)) : reader.u64(),
  write: (writer, value) => writer.int(value),
};

const copies: Codec<KnownBlock["copies"]> = converted(
  tuple({ device: count, host: count, disk: count }),
  ({ device, host, disk }) => [device, host, disk],
  ([device, host, disk]) => ({ device, host, disk }),
);

const tokens: Codec<Uint32Array> = {
  read(reader) {
    const read = new Uint32Array(reader.array(ITEMS_MAX));
    reader.u32s(read);
    return read;
  },
  write(writer, all) {
    writer.array(all.length);
    for (const token of all) writer.int(token);
  },
};

const known: Codec<readonly [BlockName, KnownBlock]> = converted(
  tuple({
    name,
    sequence: u64,
    parent: optionalHash,
    before: nullable(name),
    salt: u64,
    copies,
    perhaps: count,
  }),
  ({ name: own, ...block }) => [own, block],
  ([own, block]) => ({ name: own, ...block }),
);

const orphan: Codec<OrphanBlock> = converted(
  tuple({ name, parent: name, tokens, loraName: optionalText, salt: optionalText, copies }),
  (block) => ({ ...block, extras: null }),
  (block) => block,
);

const knownPage = list(known, PAGE_BLOCKS);
const orphanPage = list(orphan, PAGE_BLOCKS);

/** Index of a group and whether it is the main one, one after the other in the list. */
const groups: Codec<readonly (readonly [number, boolean])[]> = {
  read: (reader) =>
    Array.from({ length: reader.array(ITEMS_MAX) / 2 }, () => [reader.uint(), reader.bool()]),
  write(writer, all) {
    writer.array(all.length * 2);
    for (const [index, isMain] of all) writer.int(index).bool(isMain);
  },
};

const HEAD = tuple({
  format: oneOf(["hearth-feed 2"], "format"),
  next: checked(count, (next) => next > 0, "saved state without a batch"),
  lastPayload: u64,
  blockTokens: converted(
    count,
    (size) => size || null,
    (size) => size ?? 0,
  ),
  isSizeSure: bool,
  isComplete: bool,
  hasForgottenGone: bool,
  groups,
  gone: list(name, ITEMS_MAX),
  knownPages: count,
  orphanPages: count,
});

/**
 * Yields the pages; the last one contains their number. The state must not change meanwhile.
 * Waiting multimodal blocks are omitted.
 */
export function* savedIngestPages(saved: SavedIngest): Generator<Uint8Array> {
  let [knownPages, orphanPages] = [0, 0];
  for (const page of paged(saved.known)) {
    yield encode(knownPage, page);
    knownPages++;
  }
  for (const page of paged(plainOrphans(saved.orphans))) {
    yield encode(orphanPage, page);
    orphanPages++;
  }
  const sets = { groups: [...saved.groups], gone: [...saved.gone] };
  yield encode(HEAD, { ...saved, format: "hearth-feed 2", ...sets, knownPages, orphanPages });
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
  const head = last === undefined ? null : decode(HEAD, last);
  if (!head?.ok || blocks.length !== head.value.knownPages + head.value.orphanPages) return null;
  const { knownPages } = head.value;
  const known = valuesOf(knownPage, blocks.slice(0, knownPages));
  const orphans = valuesOf(orphanPage, blocks.slice(knownPages));
  return known === null || orphans === null ? null : { ...head.value, known, orphans };
}

/** The items of all pages; null if one is malformed. */
function valuesOf<T>(codec: Codec<readonly T[]>, pages: readonly Uint8Array[]): T[] | null {
  const values: T[] = [];
  for (const page of pages) {
    const read = decode(codec, page);
    if (!read.ok) return null;
    values.push(...read.value);
  }
  return values;
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

function* plainOrphans(orphans: Iterable<OrphanBlock>): Generator<OrphanBlock> {
  for (const orphan of orphans) if (orphan.extras === null) yield orphan;
}
