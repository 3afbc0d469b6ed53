import type {
  AliasRow,
  BlockIndex,
  BlockRow,
  BlockRows,
  IndexState,
  PreviousRun,
} from "../../src/store/index/index.ts";

interface Row extends BlockRow {
  readonly aliases: readonly Uint8Array[];
}

/** What a run left in the index. */
interface Kept {
  rows: Map<string, Row>;
  run: PreviousRun;
}

const NOTHING: PreviousRun = { incarnation: null, flushedSequence: 0, clean: false };

/**
 * The memory of what lies on SSD, in this process: an index that thousands of runs can open without
 * a thread each. What was not flushed is lost by `crash`, as SQLite's would be by a kill.
 */
export class IndexBox {
  #kept: Kept = { rows: new Map(), run: NOTHING };
  #open: MemoryIndex | null = null;

  open(incarnation: bigint): MemoryIndex {
    this.#open = new MemoryIndex(this, this.#kept, incarnation);
    return this.#open;
  }

  keep(from: MemoryIndex, kept: Kept): void {
    if (from === this.#open) this.#kept = kept;
  }

  /** The open index writes nothing any more. */
  crash(): void {
    this.#open = null;
  }

  /** As if its files were removed. */
  lose(): void {
    this.#kept = { rows: new Map(), run: NOTHING };
    this.#open = null;
  }
}

const nameOf = (digest: Uint8Array, layer: number) => `${digest.toHex()} ${layer}`;

export class MemoryIndex implements BlockIndex {
  readonly previous: PreviousRun;
  readonly #box: IndexBox;
  readonly #incarnation: bigint;
  readonly #rows: Map<string, Row>;
  readonly #settled = new Set<number>();
  #through = 0;
  #isBegun = false;

  constructor(box: IndexBox, kept: Kept, incarnation: bigint) {
    this.#box = box;
    this.#rows = new Map(kept.rows);
    this.previous = kept.run;
    this.#incarnation = incarnation;
  }

  get state(): IndexState {
    return { failing: null, pending: 0, dropped: 0, rows: this.#rows.size, setAside: null };
  }

  async *loadBlocks(): AsyncIterable<BlockRows> {
    const oldestFirst = [...this.#rows.values()].sort((a, b) => a.lastSeen - b.lastSeen);
    for (const row of oldestFirst) yield columnsOf(row);
  }

  async *loadAliases(): AsyncIterable<readonly AliasRow[]> {
    for (const row of this.#rows.values()) yield row.aliases.map((alias) => ({ ...row, alias }));
  }

  begin(): Promise<boolean> {
    this.#isBegun = true;
    return this.flush();
  }

  skip(sequence: number): void {
    this.#settled.add(sequence);
    while (this.#settled.delete(this.#through + 1)) this.#through++;
  }

  put(row: BlockRow): void {
    const name = nameOf(row.digest, row.layer);
    this.#rows.set(name, { ...row, aliases: this.#rows.get(name)?.aliases ?? [] });
    if (row.sequence > 0) this.skip(row.sequence);
  }

  remove(digest: Uint8Array, layer: number): void {
    this.#rows.delete(nameOf(digest, layer));
  }

  touch(digest: Uint8Array, layer: number, lastSeen: number, uses: number): void {
    const row = this.#rows.get(nameOf(digest, layer));
    if (row !== undefined) this.#rows.set(nameOf(digest, layer), { ...row, lastSeen, uses });
  }

  putAlias({ digest, layer, alias }: AliasRow): void {
    const row = this.#rows.get(nameOf(digest, layer));
    if (row === undefined) return;
    this.#rows.set(nameOf(digest, layer), { ...row, aliases: [...row.aliases, alias] });
  }

  async flush(): Promise<boolean> {
    this.#keep(false);
    return true;
  }

  #keep(clean: boolean): void {
    const run = { incarnation: this.#incarnation, flushedSequence: this.#through, clean };
    const rows = new Map(this.#rows);
    this.#box.keep(this, { rows, run: this.#isBegun ? run : this.previous });
  }

  async close(): Promise<boolean> {
    this.#keep(true);
    return true;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

function columnsOf(row: Row): BlockRows {
  return {
    count: 1,
    macKeyId: row.macKeyId ?? null,
    namespaceKey: row.namespaceKey,
    layer: row.layer,
    digests: row.digest,
    parents: row.parent ?? new Uint8Array(32),
    bytes: Uint32Array.of(row.bytes),
    checksums: BigUint64Array.of(row.checksum),
    variants: Uint8Array.of(row.variant),
    lastSeen: Uint32Array.of(row.lastSeen),
    uses: Uint16Array.of(row.uses),
  };
}
