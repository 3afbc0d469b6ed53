import { nativeBuffer, type Region } from "../../src/native/index.ts";
import {
  type AddressBatch,
  CommitFlag,
  createHandleBatch,
  type EngineSession,
  type HandleBatch,
  type TieredStore,
} from "../../src/store/index.ts";
import {
  type BlockName,
  type BlockSpec,
  batchOf,
  digestOf,
  type OutcomeName,
  outcomeOf,
  seedOf,
  specOf,
} from "./names.ts";
import { verifyStore } from "./verify-store.ts";

type Blocks = readonly (BlockName | BlockSpec)[];

/** A granted slot, for writing or reading. */
export interface Handle {
  readonly name: BlockName;
  readonly outcome: OutcomeName;
  readonly slot: number;
  readonly generation: number;
  readonly offset: number;
  /** Length of the block; for writers, `capacity` is the length of the slot. */
  readonly bytes: number;
  readonly capacity: number;
  readonly checksum: bigint;
  /** MAC of an acquired block; zeros if it has none. */
  readonly mac: Uint8Array;
}

export interface AcquireWish {
  readonly tiers?: number;
  readonly stopAtMiss?: boolean;
  readonly deadlineMs?: number;
}

export type Read = OutcomeName | "wrong bytes";

/**
 * An engine as the store sees it: a session and the bytes of its blocks. Verifies the store's
 * integrity after each call.
 */
export class StoreEngine {
  readonly holder: EngineSession;
  readonly #store: TieredStore;
  readonly #verify: () => void;
  readonly #region: Region;
  #alive = true;

  /** `verify`: called after each call. Default: checks every invariant of the store. */
  constructor(
    store: TieredStore,
    region: Region,
    holder: EngineSession,
    verify: () => void = () => verifyStore(store),
  ) {
    this.#store = store;
    this.#verify = verify;
    this.#region = region;
    this.holder = holder;
  }

  reserve(...blocks: Blocks): Handle[] {
    return this.#reserve(blocks, batchOf(blocks));
  }

  /** Reserves a block under a parent other than the one in its name. */
  reserveUnder(name: BlockName, parent: BlockName): Handle {
    const batch = batchOf([name]);
    batch.parents.set(digestOf(parent));
    return this.#reserve([name], batch)[0]!;
  }

  #reserve(blocks: Blocks, batch: AddressBatch): Handle[] {
    this.#store.deriveKeys(batch, true);
    const out = createHandleBatch(batch.capacity);
    this.holder.reserve(batch, out);
    this.#verify();
    return blocks.map(specOf).map(({ name }, i) => ({
      name,
      outcome: outcomeOf(out.outcome[i]!),
      slot: out.slot[i]!,
      generation: out.generation[i]!,
      offset: out.offset[i]!,
      bytes: batch.bytes[i]!,
      capacity: out.bytes[i]!,
      checksum: 0n,
      mac: new Uint8Array(16),
    }));
  }

  /** Writes the bytes that belong to the block's name. */
  write(handles: readonly Handle[]): void {
    for (const { name, outcome, offset, bytes } of handles) {
      if (outcome === "ok") this.#region.fill(offset, bytes, seedOf(name));
    }
  }

  /** Commits without checksums unless they are given. */
  async commit(
    handles: readonly Handle[],
    checksums?: bigint[],
    macs?: readonly Uint8Array[],
  ): Promise<OutcomeName[]> {
    const batch = handleBatch(handles);
    macs?.forEach((mac, i) => {
      batch.mac.set(mac, i * 16);
    });
    checksums?.forEach((checksum, i) => {
      batch.checksum[i] = checksum;
      batch.flags[i] = CommitFlag.checksumGiven;
    });
    const later = this.holder.commit(batch);
    this.#verify();
    await later;
    this.#verify();
    return outcomesOf(batch);
  }

  checksumsOf(handles: readonly Handle[]): bigint[] {
    return handles.map(({ offset, bytes }) => this.#region.checksum(offset, bytes));
  }

  abort(handles: readonly Handle[]): OutcomeName[] {
    const batch = handleBatch(handles);
    this.holder.abort(batch);
    this.#verify();
    return outcomesOf(batch);
  }

  /** Reserves, writes and commits. Returns the outcome of each block. */
  async put(...blocks: Blocks): Promise<OutcomeName[]> {
    const handles = this.reserve(...blocks);
    this.write(handles);
    const granted = handles.filter(({ outcome }) => outcome === "ok");
    const committed = await this.commit(granted);
    return handles.map(({ outcome }) => (outcome === "ok" ? committed.shift()! : outcome));
  }

  acquire(names: readonly BlockName[], options: AcquireWish = {}): Handle[] {
    const { out, later } = this.#acquire(names, options);
    if (later !== null) throw new Error("blocks have to be brought first: use fetch");
    return handlesOf(names, out);
  }

  /** As `acquire`, for blocks that may have to be read from a slower tier. */
  async fetch(names: readonly BlockName[], options: AcquireWish = {}): Promise<Handle[]> {
    const { out, later } = this.#acquire(names, options);
    const answer = (await later) ?? out;
    this.#verify();
    return handlesOf(names, answer);
  }

  #acquire(names: readonly BlockName[], options: AcquireWish) {
    const batch = batchOf(names);
    this.#store.deriveKeys(batch, false);
    const out = createHandleBatch(batch.capacity);
    const { tiers = 0, deadlineMs = 1_000, stopAtMiss = false } = options;
    const later = this.holder.acquire(batch, { tiers, deadlineMs, stopAtMiss }, out);
    this.#verify();
    return { out, later };
  }

  /** Whether all bytes of an acquired slot are those of its block. */
  proves({ name, offset, bytes, checksum }: Handle): boolean {
    if (this.#region.firstWrong(offset, bytes, seedOf(name)) !== null) return false;
    return this.#region.checksum(offset, bytes) === checksum;
  }

  release(handles: readonly Handle[]): OutcomeName[] {
    const batch = handleBatch(handles);
    this.holder.release(batch);
    this.#verify();
    return outcomesOf(batch);
  }

  /** Reports blocks as a reader whose copies did not verify. */
  async report(handles: readonly Handle[]): Promise<OutcomeName[]> {
    const batch = handleBatch(handles);
    const later = this.holder.report(batch);
    this.#verify();
    await later;
    this.#verify();
    return outcomesOf(batch);
  }

  /** Flips one bit of a block in RAM. */
  flip({ offset }: Handle, at = 100): void {
    const byte = nativeBuffer(1);
    this.#region.copyOut(offset + at, byte, 1, false);
    byte.bytes[0]! ^= 4;
    this.#region.copyIn(offset + at, byte, 1, false);
  }

  /** Reads blocks and releases them: `ok` only if every byte is correct. */
  get(...names: BlockName[]): Read[] {
    return this.#read(this.acquire(names));
  }

  /** As `get`, for blocks that may have to be read from a slower tier. */
  async load(...names: BlockName[]): Promise<Read[]> {
    return this.#read(await this.fetch(names));
  }

  #read(handles: readonly Handle[]): Read[] {
    const read = handles.map((handle) => {
      if (handle.outcome !== "ok") return handle.outcome;
      return this.proves(handle) ? "ok" : "wrong bytes";
    });
    this.release(handles.filter(({ outcome }) => outcome === "ok"));
    return read;
  }

  /** Length of the leading run, then the bit of each block's fastest tier. */
  match(names: readonly BlockName[], tiers = 0): number[] {
    const batch = batchOf(names);
    this.#store.deriveKeys(batch, false);
    // Stale contents, as in a server's scratch memory.
    const best = new Uint8Array(names.length).fill(0xff);
    return [this.holder.match(batch, tiers, best), ...best];
  }

  gpuStored(...blocks: Blocks): OutcomeName[] {
    return this.#perBlock(blocks, true, (batch, out) => this.holder.gpuStored(batch, out));
  }

  gpuEvicted(...names: BlockName[]): OutcomeName[] {
    return this.#perBlock(names, false, (batch, out) => this.holder.gpuEvicted(batch, out));
  }

  sessionCommit(session: bigint, name: BlockName): OutcomeName {
    const batch = batchOf([name]);
    this.#store.deriveKeys(batch, false);
    const outcome = outcomeOf(this.holder.sessionCommit(session, batch));
    this.#verify();
    return outcome;
  }

  sessionRelease(session: bigint): OutcomeName {
    const outcome = outcomeOf(this.holder.sessionRelease(session));
    this.#verify();
    return outcome;
  }

  /** Adds an engine hash to one block. */
  alias(name: BlockName, hash: bigint): OutcomeName {
    const aliases = new Uint8Array(32);
    new DataView(aliases.buffer).setBigUint64(0, hash, true);
    return this.#perBlock([name], false, (batch, out) =>
      this.holder.alias(batch, aliases, false, out),
    )[0]!;
  }

  /** The digest, in hex, that the engine hash resolves to; null for none. */
  resolve(hash: bigint, layer: number): string | null {
    const hashes = new Uint8Array(8);
    new DataView(hashes.buffer).setBigUint64(0, hash, true);
    const digests = new Uint8Array(32).fill(0xaa);
    this.holder.resolve(hashes, 1, layer, digests);
    return digests.every((byte) => byte === 0) ? null : digests.toHex();
  }

  #perBlock(
    blocks: Blocks,
    withParents: boolean,
    run: (batch: AddressBatch, out: HandleBatch) => void,
  ): OutcomeName[] {
    const batch = batchOf(blocks);
    this.#store.deriveKeys(batch, withParents);
    const out = createHandleBatch(batch.capacity);
    run(batch, out);
    this.#verify();
    return outcomesOf(out);
  }

  /** Closes the connection; the process lives. */
  abandon(): void {
    this.holder.abandon();
    this.#verify();
  }

  /** Ends the process. May be called more than once. */
  die(): void {
    if (this.#alive) this.abandon();
    this.#alive = false;
    this.holder.buried();
    this.#verify();
  }
}

export function handleBatch(handles: readonly Handle[]): HandleBatch {
  const batch = createHandleBatch(Math.max(1, handles.length));
  batch.count = handles.length;
  handles.forEach(({ slot, generation }, i) => {
    batch.slot[i] = slot;
    batch.generation[i] = generation;
  });
  return batch;
}

function handlesOf(names: readonly BlockName[], out: HandleBatch): Handle[] {
  return names.map((name, i) => ({
    name,
    outcome: outcomeOf(out.outcome[i]!),
    slot: out.slot[i]!,
    generation: out.generation[i]!,
    offset: out.offset[i]!,
    bytes: out.bytes[i]!,
    capacity: out.bytes[i]!,
    checksum: out.checksum[i]!,
    mac: out.mac.slice(i * 16, (i + 1) * 16),
  }));
}

function outcomesOf(batch: HandleBatch): OutcomeName[] {
  return Array.from(batch.outcome.subarray(0, batch.count), outcomeOf);
}

export function hexOf(name: BlockName): string {
  return digestOf(name).toHex();
}
