import {
  DIGEST_BYTES,
  type NamespaceIndex,
  NO_NODE,
  type NodeId,
  yieldToLoop,
} from "../../core/index.ts";
import { crashPoint, type DiskEntry } from "../../native/index.ts";
import { type AddressBatch, createAddressBatch, hasParent } from "../batches.ts";
import { InsertRefusal, isRefusal, Tier } from "../blocks/index.ts";
import type { AliasRow, BlockRows } from "../index/index.ts";
import {
  type BlockName,
  blockPath,
  decodeHeader,
  fileBytesOf,
  HEADER_BYTES,
  isLeftover,
  type KvbHeader,
  parseBlockName,
  QUARANTINE_FOLDER,
  SHARDS,
  shardOf,
} from "../kvb/index.ts";
import type { SsdParts } from "./ssd-parts.ts";
import type { SsdRoom } from "./ssd-room.ts";

/** Result of the recovery of blocks at startup. */
export interface RecoveryReport {
  readonly blocks: number;
  readonly bytes: number;
  /** Number of blocks without an index row that were restored from the header of their file. */
  readonly adopted: number;
  /**
   * `rowsDropped`: rows without a matching file. `filesDropped`: files without a row, or with a
   * length that differs from the row. Recovery removes both.
   */
  readonly rowsDropped: number;
  readonly filesDropped: number;
  /** Number of files with names that are not Hearth's. Recovery does not change them. */
  readonly foreignFiles: number;
}

/** Shard folders listed, and file headers read, at the same time. */
const LISTS_AT_ONCE = 8;
const PEEKS_AT_ONCE = 32;
const ROWS_MAX = 4096;
/** Maximum number of index changes, and of file removals, in progress before recovery pauses. */
const PENDING_MAX = 100_000;
const REMOVALS_AHEAD = 4_096;
/**
 * Maximum number of blocks evicted to insert one block into a full table. More than one may be
 * needed, because its parent may need an entry too.
 */
const TABLE_RETRIES = 4;
/** Tree paths put in order before the event loop is yielded to. */
const TOUCHES_A_SLICE = 1024;

/**
 * Rebuilds the block table from the SSD folder and the index before the first write. Restores a
 * block if its row and a file of the right name and length exist. Removes rows and files that do
 * not match. Restores a file without a row from its header if its row was lost when the run that
 * wrote it crashed.
 */
export class Recovery {
  readonly #parts: SsdParts;
  readonly #room: SsdRoom;
  /** True if the index is new: all blocks are restored from their headers. */
  readonly #rebuild: boolean;
  readonly #files = new FileCatalogue();
  /**
   * Shard folders that could not be listed. Rows of their blocks are accepted unchecked, since each
   * read verifies its block.
   */
  readonly #unseen = new Set<string>();
  /** Pairs of namespace and layer that occur in the restored rows. */
  readonly #groups = new Set<string>();
  readonly #batch: AddressBatch = createAddressBatch(ROWS_MAX);
  readonly #report = {
    blocks: 0,
    bytes: 0,
    adopted: 0,
    rowsDropped: 0,
    filesDropped: 0,
    foreignFiles: 0,
  };

  constructor(parts: SsdParts, room: SsdRoom) {
    this.#parts = parts;
    this.#room = room;
    this.#rebuild = parts.index.previous.incarnation === null;
  }

  async run(): Promise<RecoveryReport> {
    await this.#walk();
    crashPoint("recovery.walked");
    const pages = this.#parts.index.loadBlocks()[Symbol.asyncIterator]();
    // Request the next page now: the index worker collects it while this one is processed.
    let next = pages.next();
    for (let page = await next; page.done !== true; page = await next) {
      next = pages.next();
      this.#enterRows(page.value);
      await this.#keepUp();
      await yieldToLoop();
    }
    for await (const aliases of this.#parts.index.loadAliases()) this.#enterAliases(aliases);
    crashPoint("recovery.rows-entered");
    await this.#settleLeft();
    crashPoint("recovery.files-settled");
    if (this.#groups.size > 1 || this.#report.adopted > 0) await this.#sortByUse();
    await this.#parts.index.begin();
    crashPoint("recovery.begun");
    return { ...this.#report };
  }

  /**
   * Sorts the eviction order by the last use of the blocks, path by path. Needed because rows come
   * sorted by namespace and layer, and files in no order.
   */
  async #sortByUse(): Promise<void> {
    const { table } = this.#parts;
    const leaves: NodeId[] = [];
    let node = table.nextOn(NO_NODE, Tier.ssd);
    for (; node !== NO_NODE; node = table.nextOn(node, Tier.ssd)) {
      // Descendants that are only in RAM do not determine the last use of a path on SSD.
      if (table.isLeafOn(node, Tier.ssd)) leaves.push(node);
    }
    leaves.sort((a, b) => table.lastUsedOf(a) - table.lastUsedOf(b));
    for (let i = 0; i < leaves.length; i++) {
      table.touchPath(leaves[i]);
      if (i % TOUCHES_A_SLICE === 0) await yieldToLoop();
    }
  }

  async #walk(): Promise<void> {
    const top = await this.#walkFolder("");
    const names = top === null ? null : new Set(top.map(({ name }) => name));
    const shards = SHARDS.filter((shard) => names === null || names.has(shard));
    await inParallel(shards, LISTS_AT_ONCE, async (shard) => void (await this.#walkFolder(shard)));
    const { disk, ioSlots } = this.#parts;
    const set = await ioSlots.run("read", () => disk.list(QUARANTINE_FOLDER));
    if (!set?.ok) return;
    for (const { allocatedBytes } of set.entries) this.#room.foundQuarantined(allocatedBytes);
  }

  /** Returns the entries of a folder, or null if it cannot be listed. */
  async #walkFolder(folder: string): Promise<readonly DiskEntry[] | null> {
    const { disk, ioSlots, log } = this.#parts;
    const listed = await ioSlots.run("read", () => disk.list(folder));
    if (!listed?.ok) {
      if (listed?.status === "missing") return [];
      log("error", "folder cannot be listed", { folder, status: listed?.status });
      this.#unseen.add(folder);
      return null;
    }
    for (const { name, bytes } of listed.entries) {
      const block = folder === "" ? null : parseBlockName(name);
      if (block?.keyPrefix.startsWith(folder)) this.#files.add(block, bytes);
      else if (isLeftover(name)) await this.#removeLeftover(folder, name);
      else if (folder !== "") this.#report.foreignFiles++;
    }
    return listed.entries;
  }

  async #removeLeftover(folder: string, name: string): Promise<void> {
    const { disk, ioSlots } = this.#parts;
    const path = folder === "" ? name : `${folder}/${name}`;
    await ioSlots.run("remove", () => disk.remove(path));
  }

  #enterRows(rows: BlockRows): void {
    const { index, namespaces } = this.#parts;
    const { count, layer } = rows;
    const namespace = namespaces.indexOf(rows.namespaceKey);
    if (namespace !== null && rows.macKeyId !== null) {
      namespaces.setMacKeyId(namespace, rows.macKeyId.toHex());
    }
    this.#groups.add(`${namespace} ${layer}`);
    const batch = this.#deriveKeys(rows.digests, rows.parents, count, layer);
    const { buffer, byteOffset } = batch.keyBytes;
    const keys = new DataView(buffer, byteOffset);
    for (let i = 0; i < count; i++) {
      batch.bytes[i] = rows.bytes[i];
      const variant = rows.variants[i];
      const [high, low] = [keys.getUint32(i * 32), keys.getUint32(i * 32 + 4)];
      const wanted = fileBytesOf(rows.bytes[i]);
      const isUnseen =
        this.#unseen.size > 0 && this.#unseen.has(shardOf(prefixAt(batch.keyBytes, i)));
      const found = isUnseen ? wanted : this.#files.take(high, low, layer, variant);
      const right = found === wanted;
      const entered =
        right &&
        this.#enter(namespace, batch, i, {
          checksum: rows.checksums[i],
          variant,
          lastSeen: rows.lastSeen[i],
          uses: rows.uses[i],
        });
      if (entered) continue;
      this.#report.rowsDropped++;
      index.remove(rows.digests.slice(i * DIGEST_BYTES, (i + 1) * DIGEST_BYTES), layer);
      const keyPrefix = prefixAt(batch.keyBytes, i);
      if (found !== null) this.#dropFile({ keyPrefix, layer, variant }, found);
    }
  }

  #deriveKeys(digests: Uint8Array, parents: Uint8Array, count: number, layer: number) {
    const batch = this.#batch;
    const bytes = count * DIGEST_BYTES;
    batch.count = count;
    batch.layer = layer;
    batch.digests.set(digests.subarray(0, bytes));
    batch.parents.set(parents.subarray(0, bytes));
    const { native } = this.#parts;
    native.blockKeys(batch.digests.subarray(0, bytes), layer, batch.keyBytes);
    native.blockKeys(batch.parents.subarray(0, bytes), layer, batch.parentKeyBytes);
    return batch;
  }

  /**
   * Inserts the blocks of rows or headers into the table. Returns false for a block that the table
   * refuses because it is full or the parent link is invalid.
   */
  #enter(
    namespace: NamespaceIndex | null,
    batch: AddressBatch,
    i: number,
    row: { checksum: bigint; variant: number; lastSeen: number; uses: number },
  ): boolean {
    const { table, files, nowSeconds } = this.#parts;
    if (namespace === null) return false;
    const known = table.find(batch.keys, i * 8);
    if (known !== NO_NODE && !this.#fits(known, batch.bytes[i], row.checksum)) return false;
    const parent = hasParent(batch, i);
    let node = table.insertResident(batch, i, namespace, parent, Tier.ssd);
    for (let tries = 0; node === InsertRefusal.full && tries < TABLE_RETRIES; tries++) {
      if (!this.#dropOldest()) break;
      node = table.insertResident(batch, i, namespace, parent, Tier.ssd);
    }
    if (isRefusal(node)) return false;
    table.setChecksum(node, Number(row.checksum & 0xffff_ffffn), Number(row.checksum >> 32n));
    // Cap the time: a clock that was ahead in an earlier run must not keep the block from expiring.
    const lastSeen = Math.min(row.lastSeen, nowSeconds());
    const [uses, lastUsed] = [table.usesOf(node), table.lastUsedOf(node)];
    table.setUses(node, Math.max(uses, row.uses), Math.max(lastUsed, lastSeen));
    files.setVariant(node, row.variant);
    this.#room.found(batch.bytes[i]);
    this.#report.blocks++;
    this.#report.bytes += batch.bytes[i];
    return true;
  }

  /**
   * Returns whether the table's entry for a block allows that the block is on SSD with these bytes.
   */
  #fits(node: NodeId, bytes: number, checksum: bigint): boolean {
    const { table } = this.#parts;
    if (table.isResident(node, Tier.ssd)) return false;
    // The block in RAM was taken over from the previous process and is more recent than the file.
    if (!table.isResident(node, Tier.ram)) return true;
    return table.bytesOf(node) === bytes && table.checksumOf(node) === checksum;
  }

  /**
   * Removes the least recently used block from the table. If the table is too small for all blocks,
   * the most recently used ones are restored.
   */
  #dropOldest(): boolean {
    const { table } = this.#parts;
    const oldest = table.oldest(Tier.ssd);
    if (oldest === NO_NODE) return false;
    this.#report.blocks--;
    this.#report.bytes -= table.bytesOf(oldest);
    this.#report.rowsDropped++;
    this.#report.filesDropped++;
    void this.#room.drop(oldest);
    return true;
  }

  #enterAliases(aliases: readonly AliasRow[]): void {
    const { table } = this.#parts;
    const none = new Uint8Array(DIGEST_BYTES);
    for (const { digest, layer, alias } of aliases) {
      const node = table.find(this.#deriveKeys(digest, none, 1, layer).keys, 0);
      if (node === NO_NODE) continue;
      table.addName(node, alias);
    }
  }

  /** Restores or removes the files that have no row. */
  async #settleLeft(): Promise<void> {
    await inParallel(this.#files.left(), PEEKS_AT_ONCE, async ({ name, fileBytes }) => {
      const header = await this.#headerOf(name, fileBytes);
      if (header === null || !this.#lostItsRow(header) || !this.#adopt(name, header)) {
        this.#dropFile(name, fileBytes);
      }
      await this.#keepUp();
    });
  }

  /**
   * Pauses while too many index changes or file removals are in progress, since recovery produces
   * them faster than they complete. Does not wait for an index that fails.
   */
  async #keepUp(): Promise<void> {
    const { index } = this.#parts;
    if (index.state.pending > PENDING_MAX) await index.flush();
    if (this.#room.removals.underWay > REMOVALS_AHEAD) await this.#room.removalsOver();
  }

  /**
   * Reads the header of a file. Returns null if it is invalid, or if the file's name or length does
   * not match it.
   */
  #headerOf(name: BlockName, fileBytes: number): Promise<KvbHeader | null> {
    return this.#parts.ioSlots.run("read", () => this.#peek(name, fileBytes));
  }

  async #peek(name: BlockName, fileBytes: number): Promise<KvbHeader | null> {
    const { disk } = this.#parts;
    using slot = disk.claimHeader();
    if (slot === null) return null;
    const peeked = await disk.peek(pathOf(name), slot);
    if (!peeked.ok) return null;
    const decoded = decodeHeader(slot.bytes);
    if (!decoded.ok || fileBytesOf(decoded.header.payloadBytes) !== fileBytes) return null;
    return decoded.header;
  }

  /**
   * Returns whether the row of this file was lost in a crash. If not, the row was removed together
   * with the block, and the file is a leftover.
   */
  #lostItsRow({ incarnation, sequence }: KvbHeader): boolean {
    const { previous } = this.#parts.index;
    if (this.#rebuild) return true;
    return incarnation === previous.incarnation && sequence > previous.flushedSequence;
  }

  #adopt(name: BlockName, header: KvbHeader): boolean {
    const { index, nowSeconds } = this.#parts;
    const none = new Uint8Array(DIGEST_BYTES);
    const { layer, digest, parent, payloadBytes: bytes, payloadChecksum: checksum } = header;
    const batch = this.#deriveKeys(digest, parent ?? none, 1, layer);
    if (layer !== name.layer || prefixAt(batch.keyBytes, 0) !== name.keyPrefix) return false;
    batch.bytes[0] = bytes;
    const lastSeen = Math.min(Math.floor(header.writtenMs / 1_000), nowSeconds());
    const { variant } = name;
    const row = { checksum, variant, lastSeen, uses: 1 };
    const namespace = this.#parts.namespaces.indexOf(header.namespaceKey);
    if (!this.#enter(namespace, batch, 0, row)) return false;
    this.#report.adopted++;
    crashPoint("recovery.adopted");
    // Write no sequence number: those of an earlier run are not valid in this one.
    index.put({
      ...row,
      namespaceKey: header.namespaceKey,
      layer,
      digest,
      parent,
      bytes,
      sequence: 0,
    });
    return true;
  }

  #dropFile(name: BlockName, fileBytes: number): void {
    this.#report.filesDropped++;
    void this.#room.removals.remove(
      pathOf(name),
      Math.max(HEADER_BYTES, fileBytes),
      () => undefined,
    );
  }
}

function prefixAt(keys: Uint8Array, i: number): string {
  return keys.subarray(i * 32, i * 32 + 8).toHex();
}

function pathOf({ keyPrefix, layer, variant }: BlockName): string {
  return blockPath(Uint8Array.fromHex(keyPrefix), layer, variant);
}

/** Runs `work` on each item, at most `atOnce` at the same time. */
async function inParallel<T>(
  items: Iterable<T>,
  atOnce: number,
  work: (item: T) => Promise<void>,
): Promise<void> {
  const iterator = items[Symbol.iterator]();
  const run = async () => {
    for (let next = iterator.next(); !next.done; next = iterator.next()) await work(next.value);
  };
  await Promise.all(Array.from({ length: atOnce }, run));
}

const WORDS = 5;
const FIRST_CAPACITY = 1024;
const FREE = 0;
const PAGE = 4096;

/**
 * Names of all block files found in the folder, in about forty bytes each, so that millions of them
 * can be compared with the index. A name consists of key prefix, layer and variant.
 */
class FileCatalogue {
  /** Per file: low and high word of the key prefix, layer, variant, and length in pages. */
  #words = new Uint32Array(FIRST_CAPACITY * WORDS);
  /** Hash table with open addressing: number of the file plus one, or `FREE`. */
  #places = new Uint32Array(FIRST_CAPACITY * 2);
  #taken = new Uint8Array(FIRST_CAPACITY);
  #count = 0;

  add(name: BlockName, fileBytes: number): void {
    if (this.#count === this.#taken.length) this.#grow();
    const low = Number.parseInt(name.keyPrefix.slice(8), 16);
    const high = Number.parseInt(name.keyPrefix.slice(0, 8), 16);
    const entry = this.#count++;
    // Lengths that are not a multiple of the page size are stored as 0, which matches no block.
    const pages = fileBytes % PAGE === 0 ? fileBytes / PAGE : 0;
    const words = this.#words;
    const at = entry * WORDS;
    words[at] = low;
    words[at + 1] = high;
    words[at + 2] = name.layer;
    words[at + 3] = name.variant;
    words[at + 4] = pages;
    this.#place(entry);
  }

  /**
   * Marks the file with this name as taken: first and second four bytes of its key (big-endian),
   * layer and variant. Returns its length in bytes, or null if it does not exist or is already
   * taken.
   */
  take(high: number, low: number, layer: number, variant: number): number | null {
    const mask = this.#places.length - 1;
    for (let at = mix(low, layer, variant) & mask; ; at = (at + 1) & mask) {
      const place = this.#places[at];
      if (place === FREE) return null;
      const entry = place - 1;
      if (!this.#is(entry, low, high, layer, variant)) continue;
      if (this.#taken[entry] === 1) return null;
      this.#taken[entry] = 1;
      return this.#words[entry * WORDS + 4] * PAGE;
    }
  }

  #is(entry: number, low: number, high: number, layer: number, variant: number): boolean {
    const at = entry * WORDS;
    const words = this.#words;
    const samePrefix = words[at] === low && words[at + 1] === high;
    return samePrefix && words[at + 2] === layer && words[at + 3] === variant;
  }

  /** Yields the files that were not taken. */
  *left(): Generator<{ readonly name: BlockName; readonly fileBytes: number }> {
    for (let entry = 0; entry < this.#count; entry++) {
      if (this.#taken[entry] === 1) continue;
      const at = entry * WORDS;
      const low = this.#words[at].toString(16).padStart(8, "0");
      const keyPrefix = this.#words[at + 1].toString(16).padStart(8, "0") + low;
      const name = { keyPrefix, layer: this.#words[at + 2], variant: this.#words[at + 3] };
      yield { name, fileBytes: this.#words[at + 4] * PAGE };
    }
  }

  #place(entry: number): void {
    const at = entry * WORDS;
    const words = this.#words;
    const mask = this.#places.length - 1;
    let place = mix(words[at], words[at + 2], words[at + 3]) & mask;
    while (this.#places[place] !== FREE) place = (place + 1) & mask;
    this.#places[place] = entry + 1;
  }

  #grow(): void {
    const capacity = this.#taken.length * 2;
    const words = new Uint32Array(capacity * WORDS);
    words.set(this.#words);
    const taken = new Uint8Array(capacity);
    taken.set(this.#taken);
    this.#words = words;
    this.#taken = taken;
    this.#places = new Uint32Array(capacity * 2);
    for (let entry = 0; entry < this.#count; entry++) this.#place(entry);
  }
}

/**
 * Hashes a file name. The low word of a key prefix is uniformly distributed, because a key is a
 * hash.
 */
function mix(low: number, layer: number, variant: number): number {
  return (low ^ Math.imul(layer + 1, 0x9e37_79b1) ^ Math.imul(variant, 0x85eb_ca6b)) >>> 0;
}
