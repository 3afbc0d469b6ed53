import {
  closeSync,
  constants,
  type Dirent,
  existsSync,
  fstatSync,
  openSync,
  readdirSync,
  readSync,
} from "node:fs";
import { join } from "node:path";
import { messageOf, yieldToLoop } from "../../core/index.ts";
import type { Native } from "../../native/index.ts";
import { readOwner } from "./claim-folder.ts";
import {
  type BlockName,
  blockPath,
  INDEX_FOLDER,
  isLeftover,
  isShard,
  LOCK_FILE,
  OWNER_FILE,
  parseBlockName,
  QUARANTINE_FOLDER,
  shardOf,
} from "./folder-layout.ts";
import {
  decodeHeader,
  type ExpectedBlock,
  fileBytesOf,
  HEADER_BYTES,
  type KvbHeader,
  verifyHeader,
} from "./header.ts";

/** How a finding is repaired. `next_start`: the agent repairs it at its next start. */
type Remedy = "quarantine" | "remove" | "drop_row" | "next_start" | "none";

interface Kind {
  readonly meaning: string;
  readonly remedy: Remedy;
  /** False if the finding is only reported and does not make the folder count as damaged. */
  readonly isProblem: boolean;
}

const damaged = (meaning: string): Kind => ({ meaning, remedy: "quarantine", isProblem: true });

/** Kinds of findings in an SSD folder. `docs/internals/on-disk-format.md` has the same table. */
export const FINDING_KINDS = {
  header: damaged("the header is damaged, or of an unknown version"),
  size: damaged("the file is longer or shorter than its header says"),
  payload: damaged("the payload does not match its checksum"),
  padding: damaged("bytes after the payload are not zero"),
  unreadable: damaged("the system cannot read the file"),
  misplaced: damaged("the file has the name of another block"),
  duplicate: damaged("another file contains the same block"),
  row_differs: damaged("the length, checksum or namespace in the index differs"),
  leftover: {
    meaning: "an incomplete file of an interrupted write",
    remedy: "remove",
    isProblem: true,
  },
  no_row: {
    meaning: "the index has no row for the block: the next start keeps or removes it",
    remedy: "next_start",
    isProblem: true,
  },
  no_file: {
    meaning: "the index has a row for a missing file",
    remedy: "drop_row",
    isProblem: true,
  },
  row_of_damaged: {
    meaning: "the index has a row for a damaged file",
    remedy: "drop_row",
    isProblem: false,
  },
  index: {
    meaning: "the index cannot be read: the next start rebuilds it from the headers",
    remedy: "next_start",
    isProblem: true,
  },
  owner: { meaning: "owner.json is damaged", remedy: "none", isProblem: true },
  no_owner: {
    meaning: "owner.json is missing: the next start claims the folder",
    remedy: "next_start",
    isProblem: false,
  },
  foreign: { meaning: "not a file of Hearth, left unchanged", remedy: "none", isProblem: false },
} as const satisfies Record<string, Kind>;

export type FindingKind = keyof typeof FINDING_KINDS;

export interface Finding {
  readonly kind: FindingKind;
  /** Path relative to the SSD folder. */
  readonly path: string;
  /** Description of the problem that completes "PATH: ...". */
  readonly why: string;
  /** Id of the index row to drop when the finding is repaired, or null. */
  readonly rowId: number | null;
}

/** Row of the block index, with the fields to compare a file with. */
export interface IndexedBlock extends ExpectedBlock {
  /** Id of the row, a small integer. */
  readonly rowId: number;
  readonly variant: number;
}

/** Read access to the block index of the folder. */
export interface IndexedBlocks {
  find(digest: Uint8Array, layer: number): IndexedBlock | null;
  all(): Iterable<IndexedBlock>;
}

export interface FolderTally {
  files: number;
  fileBytes: number;
  /** Bytes of disk space allocated by the file system. */
  allocatedBytes: number;
  /** Payload bytes of the undamaged blocks. */
  payloadBytes: number;
  sound: number;
  rows: number;
  quarantined: number;
}

export interface FolderCheck {
  readonly dir: string;
  readonly native: Pick<Native, "blockKeys">;
  /** True to verify the payloads too. */
  readonly deep: boolean;
  /** Index of the folder; null to check the files alone. */
  readonly index: IndexedBlocks | null;
  /** Counts that are updated during the check. */
  readonly tally: FolderTally;
  readonly signal?: AbortSignal;
  /** Called after every few files. */
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

/** Number of files checked before the event loop is yielded to. */
const SLICE = 64;

/** Yields the problems of an SSD folder as they are found. Changes nothing. */
export async function* checkFolder(check: FolderCheck): AsyncGenerator<Finding> {
  const walk = new Walk(check);
  yield* walk.root();
  for (const shard of walk.shards) yield* walk.shard(shard);
  yield* walk.rows();
}

/** An undamaged file, kept until all files of its shard folder are known. */
interface SoundFile {
  readonly path: string;
  readonly name: BlockName;
  readonly header: KvbHeader;
}

class Walk {
  readonly #check: FolderCheck;
  readonly #inspector = new FileInspector();
  readonly #key = new Uint8Array(32);
  /** Ids of rows whose block has an undamaged file. */
  readonly #seenRows = new Set<number>();
  /** Paths of files with a problem. */
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
    if (owner.kind === "none") yield this.#finding("no_owner", OWNER_FILE, "is missing");
    if (owner.kind === "damaged") yield this.#finding("owner", OWNER_FILE, owner.why);
    for (const entry of readdirSync(dir, { withFileTypes: true })) {
      const { name } = entry;
      if (isLeftover(name)) yield this.#leftover(name);
      else if (entry.isDirectory() && isShard(name)) this.shards.push(name);
      else if (!isKnown(entry)) yield this.#finding("foreign", name, "is not a file of Hearth");
    }
    this.shards.sort();
    const hasQuarantine = existsSync(join(dir, QUARANTINE_FOLDER));
    if (hasQuarantine) tally.quarantined = readdirSync(join(dir, QUARANTINE_FOLDER)).length;
  }

  #leftover(path: string): Finding {
    return this.#finding("leftover", path, "was not written completely");
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
      else if (name === null) yield this.#finding("foreign", path, "is not a file of Hearth");
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
      yield this.#finding("misplaced", path, `contains the block of ${right}`);
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

  /**
   * Compares the undamaged files of one block, usually one, with each other and with the index row,
   * and yields the problems.
   */
  *#block(files: SoundFile[]): Generator<Finding> {
    const { index, tally } = this.#check;
    const { digest, layer } = files[0].header;
    const row = index?.find(digest, layer) ?? null;
    if (row !== null) this.#seenRows.add(row.rowId);
    files.sort((a, b) => a.name.variant - b.name.variant);
    const kept = files.find((file) => fits(file, row)) ?? files[0];
    for (const file of files) {
      if (file !== kept) yield this.#finding("duplicate", file.path, `same block as ${kept.path}`);
    }
    if (index !== null && row === null) {
      yield this.#finding("no_row", kept.path, "is not in the index");
    } else if (row !== null && !fits(kept, row)) {
      const field = verifyHeader(kept.header, row) ?? "name";
      yield this.#finding(
        "row_differs",
        kept.path,
        `its ${field} differs from the index`,
        row.rowId,
      );
      return;
    }
    tally.sound++;
    tally.payloadBytes += kept.header.payloadBytes;
  }

  /** Yields the index rows that have no undamaged file. */
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
        : { kind: "no_file", path, why: "its file is missing", rowId: row.rowId };
    }
  }
}

/** Returns whether the row describes this file. */
function fits({ header, name }: SoundFile, row: IndexedBlock | null): boolean {
  return row !== null && row.variant === name.variant && verifyHeader(header, row) === null;
}

const KNOWN_FILES = new Set([OWNER_FILE, LOCK_FILE]);
const KNOWN_FOLDERS = new Set([QUARANTINE_FOLDER, INDEX_FOLDER, "lost+found"]);

function isKnown(entry: Dirent): boolean {
  return entry.isDirectory() ? KNOWN_FOLDERS.has(entry.name) : KNOWN_FILES.has(entry.name);
}

/** Faults of a block file that can be found without knowing its name. */
type FileFault = "unreadable" | "size" | "header" | "payload" | "padding";

interface FileSize {
  readonly fileBytes: number;
  /** Bytes of disk space allocated by the file system. */
  readonly allocatedBytes: number;
}

type Verdict =
  | { readonly ok: true; readonly header: KvbHeader }
  | { readonly ok: false; readonly fault: FileFault; readonly why: string };

export type Inspection = FileSize & Verdict;

function wrong(fault: FileFault, why: string): Verdict {
  return { ok: false, fault, why };
}

const SHRANK = wrong("size", "became shorter while it was read");

const BUFFER_BYTES = 4 * 2 ** 20;

/** Inspects block files one after the other, with one buffer that grows to the largest payload. */
export class FileInspector {
  readonly #header = new Uint8Array(HEADER_BYTES);
  #buffer = new Uint8Array(BUFFER_BYTES);

  /**
   * Checks header and size of a file; with `deep` also the checksum of the payload and the padding.
   */
  inspect(path: string, deep: boolean): Inspection {
    let size: FileSize = { fileBytes: 0, allocatedBytes: 0 };
    let fd = -1;
    try {
      fd = openSync(path, constants.O_RDONLY | constants.O_NOFOLLOW);
      const { size: fileBytes, blocks } = fstatSync(fd);
      size = { fileBytes, allocatedBytes: blocks * 512 };
      return { ...size, ...this.#judge(fd, fileBytes, deep) };
    } catch (thrown) {
      const code = (thrown as NodeJS.ErrnoException).code ?? String(thrown);
      return { ...size, ok: false, fault: "unreadable", why: `cannot be read: ${code}` };
    } finally {
      if (fd >= 0) closeSync(fd);
    }
  }

  #judge(fd: number, fileBytes: number, deep: boolean): Verdict {
    if (fileBytes < HEADER_BYTES)
      return wrong("size", `${fileBytes} bytes are too short for a header`);
    if (!readAll(fd, this.#header, 0)) return SHRANK;
    const decoded = decodeHeader(this.#header);
    if (!decoded.ok) return wrong("header", decoded.why);
    const { header } = decoded;
    const bytes = fileBytesOf(header.payloadBytes);
    if (fileBytes !== bytes) return wrong("size", `${fileBytes} bytes, its header says ${bytes}`);
    if (!deep) return { ok: true, header };
    const content = this.#room(fileBytes - HEADER_BYTES);
    if (!readAll(fd, content, HEADER_BYTES)) return SHRANK;
    const payload = content.subarray(0, header.payloadBytes);
    if (Bun.hash.xxHash3(payload) !== header.payloadChecksum) {
      return wrong("payload", "the payload does not match its checksum");
    }
    const isPadded = content.subarray(header.payloadBytes).every((byte) => byte === 0);
    if (!isPadded) return wrong("padding", "bytes after the payload are not zero");
    return { ok: true, header };
  }

  #room(bytes: number): Uint8Array<ArrayBuffer> {
    if (this.#buffer.length < bytes) this.#buffer = new Uint8Array(bytes);
    return this.#buffer.subarray(0, bytes);
  }
}

/** Fills the buffer from the file. Returns false if the file ends before the buffer is full. */
function readAll(fd: number, into: Uint8Array, position: number): boolean {
  let filled = 0;
  while (filled < into.length) {
    const count = readSync(fd, into, filled, into.length - filled, position + filled);
    if (count === 0) return false;
    filled += count;
  }
  return true;
}
