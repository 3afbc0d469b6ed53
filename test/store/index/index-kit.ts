import { cpSync, existsSync, mkdirSync } from "node:fs";
import { join } from "node:path";
import { systemClock } from "../../../src/core/index.ts";
import {
  type AliasRow,
  type BlockIndex,
  type BlockIndexOptions,
  type BlockRow,
  openBlockIndex,
} from "../../../src/store/index/index.ts";

export const OWNER = { worker: "worker-a", machine: "machine-a", store: "ssd-a" } as const;
export const INDEX_FILE = "hearth.sqlite";
export const LAYER = 0xffff_ffff;

export const namespaceOf = (number: number): Uint8Array => new Uint8Array(32).fill(number + 1);

/** 32 bytes that look like chance and are a function of the number. */
export function digestOf(number: number): Uint8Array {
  const digest = new Uint8Array(32);
  const words = new BigUint64Array(digest.buffer);
  for (let i = 0; i < 4; i++) words[i] = Bun.hash.xxHash3(`${number} ${i}`);
  return digest;
}

/** A row all of whose columns are a function of its number. */
export function rowOf(number: number, change: Partial<BlockRow> = {}): BlockRow {
  return {
    namespaceKey: namespaceOf(number % 3),
    layer: number % 2 === 0 ? LAYER : 7,
    digest: digestOf(number),
    parent: number % 5 === 0 ? null : digestOf(number - 1),
    bytes: 1000 + number,
    checksum: Bun.hash.xxHash3(`payload ${number}`),
    variant: number % 3,
    lastSeen: 1_700_000_000 + ((number * 7919) % 1000),
    uses: number % 65_536,
    sequence: number,
    ...change,
  };
}

export function aliasOf(number: number, bytes = 8): AliasRow {
  const { namespaceKey, layer, digest } = rowOf(number);
  return { namespaceKey, layer, digest, alias: digestOf(number + 1_000_000).slice(0, bytes) };
}

export function openIndex(
  folder: string,
  options: Partial<BlockIndexOptions> = {},
): Promise<BlockIndex> {
  const all = { folder, incarnation: 1n, owner: OWNER, clock: systemClock };
  return openBlockIndex({ ...all, ...options });
}

/** Each row as text, by its digest and layer, and all but the sequence. */
export function textOf(row: Omit<BlockRow, "sequence">): [key: string, text: string] {
  const parent = row.parent?.toHex() ?? "none";
  const { bytes, checksum, variant, lastSeen, uses } = row;
  const columns = [row.namespaceKey.toHex(), parent, bytes, checksum, variant, lastSeen, uses];
  return [`${row.digest.toHex()} ${row.layer}`, columns.join(" ")];
}

const isZero = (bytes: Uint8Array): boolean => bytes.every((byte) => byte === 0);

export async function loadRows(index: BlockIndex): Promise<Map<string, string>> {
  const found = new Map<string, string>();
  for await (const rows of index.loadBlocks()) {
    for (let at = 0; at < rows.count; at++) {
      const parent = rows.parents.slice(at * 32, at * 32 + 32);
      const [key, text] = textOf({
        namespaceKey: rows.namespaceKey,
        layer: rows.layer,
        digest: rows.digests.slice(at * 32, at * 32 + 32),
        parent: isZero(parent) ? null : parent,
        bytes: rows.bytes[at]!,
        checksum: rows.checksums[at]!,
        variant: rows.variants[at]!,
        lastSeen: rows.lastSeen[at]!,
        uses: rows.uses[at]!,
      });
      if (found.has(key)) throw new Error(`two rows of ${key}`);
      found.set(key, text);
    }
  }
  return found;
}

export async function loadAliases(index: BlockIndex): Promise<string[]> {
  const found: string[] = [];
  for await (const rows of index.loadAliases()) {
    for (const row of rows) found.push(aliasText(row));
  }
  return found.sort();
}

export function aliasText({ namespaceKey, layer, digest, alias }: AliasRow): string {
  return [namespaceKey.toHex(), layer, digest.toHex(), alias.toHex()].join(" ");
}

/** The result of `loadRows` if the index holds these rows. */
export function rowsOf(numbers: Iterable<number>): Map<string, string> {
  return new Map([...numbers].map((number) => textOf(rowOf(number))));
}

export function upTo(count: number): number[] {
  return Array.from({ length: count }, (_, at) => at + 1);
}

/**
 * The files that a process which dies now leaves, in another folder. (Closing a copied file gives up
 * this process's locks on it; within one process that is of no matter.)
 */
export function crashImage(folder: string, target: string): string {
  mkdirSync(target);
  for (const file of [INDEX_FILE, `${INDEX_FILE}-wal`]) {
    if (existsSync(join(folder, file))) cpSync(join(folder, file), join(target, file));
  }
  return target;
}

/** An index with these rows, closed cleanly. */
export async function madeIndex(folder: string, count: number, aliases = 0): Promise<void> {
  const index = await openIndex(folder);
  await index.begin();
  for (const number of upTo(count)) index.put(rowOf(number));
  for (const number of upTo(aliases)) index.putAlias(aliasOf(number, number % 2 === 0 ? 8 : 32));
  if (!(await index.close(5_000))) throw new Error(`not closed: ${index.state.failing}`);
}
