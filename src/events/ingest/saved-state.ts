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

/** The saved state of an ingest, right before it applied batch number `next`. */
export interface SavedIngest extends TranslatorState {
  /** Number of the next batch to apply; at least 1. */
  readonly next: number;
  /**
   * XXH3 hash of batch `next` - 1. If the engine's batch with that number has another hash, the
   * engine has restarted.
   */
  readonly lastPayload: bigint;
}

/** Blocks per page. The event loop runs other work between two pages. */
const PAGE_BLOCKS = 1_024;
const NAME_BYTES_MAX = 64;
const ITEMS_MAX = 2 ** 22;

const optionalHash = nullable(u64);
const optionalText = nullable(text(4_096));
const count = uint();

const name: Codec<BlockName> = {
  // Files written by earlier releases contain whole digests for engines that publish digests.
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

/** Index of each KV group and whether it is a main group, alternating in one list. */
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
 * Encodes the state and yields its pages. The last page contains the number of pages. The caller
 * must not change the state meanwhile. Waiting blocks with multimodal items are left out.
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

/** Encodes the state and returns all pages. Yields to the event loop after each page. */
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

/** Decodes a saved state. Returns null if `encodeSavedIngest` did not write these pages. */
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

/** Decodes the items of all pages. Null if a page is malformed. */
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
