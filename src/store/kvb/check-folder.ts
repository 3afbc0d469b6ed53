import { type Dirent, existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { messageOf, yieldToLoop } from "../../core/index.ts";
import type { Native } from "../../native/index.ts";
import { FINDING_KINDS, type Finding, type FindingKind } from "./findings.ts";
import {
  INDEX_FOLDER,
  isLeftover,
  isShard,
  LOCK_FILE,
  OWNER_FILE,
  QUARANTINE_FOLDER,
} from "./folder.ts";
import type { KvbHeader } from "./header.ts";
import { FileInspector } from "./inspect-file.ts";
import { type BlockName, blockPath, parseBlockName, shardOf } from "./names.ts";
import { readOwner } from "./owner.ts";
import { type ExpectedBlock, verifyHeader } from "./verify-header.ts";

/** A row of the index, as far as files can be compared with it. */
export interface IndexedBlock extends ExpectedBlock {
  /** A small whole number. */
  readonly rowId: number;
  readonly variant: number;
}

/** The index beside the files, read-only. */
export interface IndexedBlocks {
  find(digest: Uint8Array, layer: number): IndexedBlock | null;
  all(): Iterable<IndexedBlock>;
}

export interface FolderTally {
  files: number;
  fileBytes: number;
  /** As the file system counts them. */
  allocatedBytes: number;
  /** Of sound blocks. */
  payloadBytes: number;
  sound: number;
  rows: number;
  quarantined: number;
}

export interface FolderCheck {
  readonly dir: string;
  readonly native: Pick<Native, "blockKeys">;
  /** Read the payloads too. */
  readonly deep: boolean;
  /** Null: files alone are looked at. */
  readonly index: IndexedBlocks | null;
  /** Counts as the check goes on. */
  readonly tally: FolderTally;
  readonly signal?: AbortSignal;
  /** Called every few files. */
  readonly onSlice?: () => void;
}

export function emptyTally(): FolderTally {
  return {
    files: 0,
    fileBytes: 0,
    allocatedBytes: 0,
    payloadBytes: 0,
    sound: 0,
    rows: 0,
    quarantined: 0,
  };
}

/** Files between two chances for everything else to run. */
const SLICE = 64;

/** Everything that is wrong with an SSD folder, as it is found. Changes nothing. */
export async function* checkFolder(check: FolderCheck): AsyncGenerator<Finding> {
  const walk = new Walk(check);
  yield* walk.root();
  for (const shard of walk.shards) yield* walk.shard(shard);
  yield* walk.rows();
}

/** A file that is sound by itself, until all files of its shard are known. */
interface SoundFile {
  readonly path: string;
  readonly name: BlockName;
  readonly header: KvbHeader;
}

class Walk {
  readonly #check: FolderCheck;
  readonly #inspector = new FileInspector();
  readonly #key = new Uint8Array(32);
  /** Rows whose block has a sound file. */
  readonly #seenRows = new Set<number>();
  /** Files with a problem. */
  readonly #blamed = new Set<string>();
  #sinceYield = 0;
  shards: string[] = [];

  constructor(check: FolderCheck) {
    this.#check = check;
  }

  #finding(kind: FindingKind, path: string, why: string, rowId: number | null = null): Finding {
    if (FINDING_KINDS[kind].isProblem) this.#blamed.add(path);
    return { kind, path, why, rowId };
  }

  async #breathe(): Promise<void> {
    if (++this.#sinceYield < SLICE) return;
    this.#sinceYield = 0;
    await yieldToLoop();
    this.#check.onSlice?.();
    this.#check.signal?.throwIfAborted();
  }

  *root(): Generator<Finding> {
    const { dir, tally } = this.#check;
    const owner = readOwner(dir);
    if (owner.kind === "none") yield this.#finding("no_owner", OWNER_FILE, "is not there");
    if (owner.kind === "damaged") yield this.#finding("owner", OWNER_FILE, owner.why);
    for (const entry of readdirSync(dir, { withFileTypes: true })) {
      const { name } = entry;
      if (isLeftover(name)) yield this.#leftover(name);
      else if (entry.isDirectory() && isShard(name)) this.shards.push(name);
      else if (!isKnown(entry)) yield this.#finding("foreign", name, "is not of Hearth");
    }
    this.shards.sort();
    const hasQuarantine = existsSync(join(dir, QUARANTINE_FOLDER));
    if (hasQuarantine) tally.quarantined = readdirSync(join(dir, QUARANTINE_FOLDER)).length;
  }

  #leftover(path: string): Finding {
    return this.#finding("leftover", path, "was not written to its end");
  }

  async *shard(shard: string): AsyncGenerator<Finding> {
    let entries: Dirent[];
    try {
      entries = readdirSync(join(this.#check.dir, shard), { withFileTypes: true });
    } catch (thrown) {
      yield this.#finding("unreadable", shard, messageOf(thrown));
      return;
    }
    const blocks = new Map<string, SoundFile[]>();
    for (const entry of entries) {
      await this.#breathe();
      const path = `${shard}/${entry.name}`;
      const name = entry.isFile() ? parseBlockName(entry.name) : null;
      if (entry.isFile() && isLeftover(entry.name)) yield this.#leftover(path);
      else if (name === null) yield this.#finding("foreign", path, "is not of Hearth");
      else yield* this.#file(shard, { path, name }, blocks);
    }
    for (const files of blocks.values()) yield* this.#block(files);
  }

  *#file(
    shard: string,
    { path, name }: Omit<SoundFile, "header">,
    blocks: Map<string, SoundFile[]>,
  ): Generator<Finding> {
    const { dir, tally, deep } = this.#check;
    tally.files++;
    const found = this.#inspector.inspect(join(dir, path), deep);
    tally.fileBytes += found.fileBytes;
    tally.allocatedBytes += found.allocatedBytes;
    if (!found.ok) {
      yield this.#finding(found.fault, path, found.why);
      return;
    }
    const { header } = found;
    const right = this.#pathOf(header, name.variant);
    if (right !== path || shard !== shardOf(name.keyPrefix)) {
      yield this.#finding("misplaced", path, `holds the block of ${right}`);
      return;
    }
    const block = `${header.layer} ${header.digest.toHex()}`;
    const files = blocks.get(block);
    if (files === undefined) blocks.set(block, [{ path, name, header }]);
    else files.push({ path, name, header });
  }

  #pathOf({ digest, layer }: ExpectedBlock | KvbHeader, variant: number): string {
    this.#check.native.blockKeys(digest, layer, this.#key);
    return blockPath(this.#key, layer, variant);
  }

  /** All sound files of one block: one, as a rule. */
  *#block(files: SoundFile[]): Generator<Finding> {
    const { index, tally } = this.#check;
    const { digest, layer } = files[0]!.header;
    const row = index?.find(digest, layer) ?? null;
    if (row !== null) this.#seenRows.add(row.rowId);
    files.sort((a, b) => a.name.variant - b.name.variant);
    const kept = files.find((file) => fits(file, row)) ?? files[0]!;
    for (const file of files) {
      if (file !== kept) yield this.#finding("duplicate", file.path, `as ${kept.path}`);
    }
    if (index !== null && row === null) {
      yield this.#finding("no_row", kept.path, "is not in the index");
    } else if (row !== null && !fits(kept, row)) {
      const field = verifyHeader(kept.header, row) ?? "name";
      yield this.#finding(
        "row_differs",
        kept.path,
        `its ${field} is another in the index`,
        row.rowId,
      );
      return;
    }
    tally.sound++;
    tally.payloadBytes += kept.header.payloadBytes;
  }

  /** Rows that no sound file answered to. */
  async *rows(): AsyncGenerator<Finding> {
    const { index, tally } = this.#check;
    if (index === null) return;
    for (const row of index.all()) {
      await this.#breathe();
      tally.rows++;
      if (this.#seenRows.has(row.rowId)) continue;
      const path = this.#pathOf(row, row.variant);
      yield this.#blamed.has(path)
        ? { kind: "row_of_damaged", path, why: "its file is damaged", rowId: row.rowId }
        : { kind: "no_file", path, why: "its file is not there", rowId: row.rowId };
    }
  }
}

/** Whether the row speaks of this very file. */
function fits({ header, name }: SoundFile, row: IndexedBlock | null): boolean {
  return row !== null && row.variant === name.variant && verifyHeader(header, row) === null;
}

const KNOWN_FILES = new Set([OWNER_FILE, LOCK_FILE]);
const KNOWN_FOLDERS = new Set([QUARANTINE_FOLDER, INDEX_FOLDER, "lost+found"]);

function isKnown(entry: Dirent): boolean {
  return entry.isDirectory() ? KNOWN_FOLDERS.has(entry.name) : KNOWN_FILES.has(entry.name);
}
