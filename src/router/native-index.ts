import { type FileHandle, open, rename, rm } from "node:fs/promises";
import { dirname } from "node:path";
import { assert, type Random } from "../core/index.ts";
import {
  type Native,
  PREFIX_CHANGE,
  PREFIX_TIERS_ALL,
  PrefixChanges,
  PrefixTable,
  STRUCTS,
} from "../native/index.ts";
import { RESIDENCY_TIERS, type ResidencyDigest } from "../observability/activity/index.ts";
import type {
  BlockHolder,
  HeldRun,
  IndexChange,
  PrefixBatch,
  PrefixIndex,
  PrefixIndexStats,
  PrefixMatches,
} from "./prefix-index.ts";
import type { TargetId } from "./workers.ts";

export interface PrefixIndexOptions {
  readonly native: Native;
  /** Source of the hash seed. If clients knew the seed, they could choose hashes that collide. */
  readonly random: Random;
  /** Memory limit, in bytes, of the structures that grow. At least 4 KiB. */
  readonly bytesMax: number;
}

/** Prefix index implemented in the native library. */
export class NativeIndex implements PrefixIndex {
  readonly #table: PrefixTable;
  readonly #changes = new PrefixChanges();
  readonly #matches: { -readonly [Key in keyof PrefixMatches]: PrefixMatches[Key] };

  constructor({ native, random, bytesMax: bytes }: PrefixIndexOptions) {
    const seed = (BigInt(random.u32()) << 32n) | BigInt(random.u32());
    this.#table = new PrefixTable(native, { bytes, seed });
    this.#matches = { count: 0, exactBlocks: 0, ...this.#table.columns };
  }

  get stats(): PrefixIndexStats {
    const info = this.#table.info();
    return {
      blocks: Number(info.blocks),
      heldBlocks: Number(info.held),
      runs: Number(info.chunks),
      bytes: Number(info.bytes),
      forgotten: Number(info.forgotten),
    };
  }

  apply(changes: readonly IndexChange[]): void {
    for (const { target, change } of changes) {
      if (change.kind === "cleared") {
        const { tier } = change;
        const number = tier === null ? PREFIX_TIERS_ALL : RESIDENCY_TIERS.indexOf(tier);
        this.#add(PREFIX_CHANGE.cleared, target, number);
      } else if (change.kind === "removed") {
        const tier = RESIDENCY_TIERS.indexOf(change.tier);
        this.#addHashes(PREFIX_CHANGE.removed, target, tier, null, change.hashes);
      } else {
        const tier = RESIDENCY_TIERS.indexOf(change.tier);
        this.#addHashes(PREFIX_CHANGE.stored, target, tier, change.parent, change.hashes);
      }
    }
    this.#flush();
  }

  #add(kind: number, target: TargetId, tier: number): void {
    if (this.#changes.room === 0) this.#flush();
    this.#changes.add({ kind, target, tier, parent: 0n }, null);
  }

  /**
   * Adds hashes. Splits them into calls of limited size, because the native library accepts a
   * bounded number of hashes per call.
   */
  #addHashes(
    kind: number,
    target: TargetId,
    tier: number,
    parent: bigint | null,
    hashes: BigUint64Array,
  ): void {
    assert(target >= 0 && target < 2 ** 16, "target ids fit in 16 bits");
    let before = parent;
    let at = 0;
    while (at < hashes.length) {
      if (this.#changes.room === 0) this.#flush();
      const count = Math.min(this.#changes.room, hashes.length - at);
      const piece = count === hashes.length ? hashes : hashes.subarray(at, at + count);
      const first = kind === PREFIX_CHANGE.stored && before === null;
      const own = first ? PREFIX_CHANGE.storedFirst : kind;
      this.#changes.add({ kind: own, target, tier, parent: before ?? 0n }, piece);
      at += count;
      if (at < hashes.length) before = hashes[at - 1];
    }
  }

  #flush(): void {
    if (this.#changes.count > 0) this.#table.apply(this.#changes);
  }

  match(hashes: BigUint64Array): PrefixMatches {
    const matches = this.#matches;
    matches.count = hashes.length === 0 ? 0 : this.#table.match(hashes);
    matches.exactBlocks = hashes.length === 0 ? 0 : this.#table.exact;
    return matches;
  }

  matchMany(hashes: BigUint64Array, ends: Uint32Array): PrefixBatch {
    const { exact, ...rest } = this.#table.matchMany(hashes, ends);
    return { ...rest, exactBlocks: exact };
  }

  holders(hashes: BigUint64Array, max: number): BlockHolder[][] {
    const words = this.#table.holders(hashes, max);
    let at = 0;
    return Array.from(hashes, () => {
      const own = words.subarray(at + 1, at + 1 + words[at]);
      at += 1 + own.length;
      return Array.from(own, (word) => ({
        target: (word & 0xffff) as TargetId,
        tiers: word >>> 16,
      }));
    });
  }

  drop(target: TargetId): void {
    this.#add(PREFIX_CHANGE.cleared, target, PREFIX_TIERS_ALL);
    this.#flush();
  }

  digests(target: TargetId): ResidencyDigest[] | null {
    const found = this.#table.digests(target);
    if (found.torn !== 0) return null;
    return RESIDENCY_TIERS.map((tier) => ({
      blocks: Number(found[`${tier}_blocks`]),
      mix: found[`${tier}_mix`],
    }));
  }

  dump(target?: TargetId): Iterable<HeldRun> {
    return runsOf(this.#table, target);
  }

  save(path: string): Promise<void> {
    return saveTable(this.#table, path);
  }

  load(path: string): Promise<boolean> {
    return loadTable(this.#table, path);
  }

  [Symbol.dispose](): void {
    this.#table[Symbol.dispose]();
  }
}

const PAGE_BYTES = 2 ** 20;

/**
 * Writes the table to a temporary file, syncs the file and renames it to `path`. The table may
 * change during the save.
 */
async function saveTable(table: PrefixTable, path: string): Promise<void> {
  const unfinished = `${path}.new`;
  table.beginSave();
  try {
    await using file = await open(unfinished, "w", 0o600);
    await writePages(table, file);
    await file.sync();
  } catch (error) {
    await rm(unfinished, { force: true });
    throw error;
  } finally {
    table.endSave();
  }
  await rename(unfinished, path);
  await using folder = await open(dirname(path), "r");
  await folder.sync();
}

async function writePages(table: PrefixTable, file: FileHandle): Promise<void> {
  const page = new Uint8Array(new ArrayBuffer(PAGE_BYTES));
  while (true) {
    const filled = table.saveNext(page);
    if (filled === 0) return;
    let at = 0;
    while (at < filled) at += (await file.write(page, at, filled - at)).bytesWritten;
  }
}

/**
 * Loads a saved table. Returns false and leaves the table empty if the file is missing or invalid.
 */
async function loadTable(table: PrefixTable, path: string): Promise<boolean> {
  const file = await open(path, "r").catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") return null;
    throw error;
  });
  if (file === null) return false;
  await using opened = file;
  const page = new Uint8Array(new ArrayBuffer(PAGE_BYTES));
  let bytesRead = 0;
  do {
    ({ bytesRead } = await opened.read(page, 0, PAGE_BYTES));
    if (!table.load(page.subarray(0, bytesRead))) return false;
  } while (bytesRead > 0);
  return table.endLoad();
}

const RUN_PAGE_BYTES = 2 ** 16;
const { size: RUN_BYTES, fields } = STRUCTS.PrefixRun;

/** Yields the runs of one target, or of all targets. Reads them from the table page by page. */
function* runsOf(table: PrefixTable, target?: TargetId): Iterable<HeldRun> {
  const page = new Uint8Array(new ArrayBuffer(RUN_PAGE_BYTES));
  const view = new DataView(page.buffer);
  table.beginDump(target);
  while (true) {
    const end = table.dumpNext(page);
    if (end === 0) return;
    let at = 0;
    while (at < end) {
      const word = (field: { readonly offset: number }) => view.getUint32(at + field.offset, true);
      const from = at + RUN_BYTES;
      const to = from + 8 * word(fields.count);
      const hasParent = word(fields.has_parent) !== 0;
      yield {
        target: word(fields.target) as TargetId,
        tier: RESIDENCY_TIERS[word(fields.tier)],
        parent: hasParent ? view.getBigUint64(at + fields.parent.offset, true) : null,
        hashes: new BigUint64Array(page.buffer.slice(from, to)),
      };
      at = to;
    }
  }
}
