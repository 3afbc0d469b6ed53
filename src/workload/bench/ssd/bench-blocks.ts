import { assert, DIGEST_BYTES, HearthError, LAYER_ALL } from "../../../core/index.ts";
import {
  type AddressBatch,
  BlockOutcome,
  createAddressBatch,
  createHandleBatch,
  type HandleBatch,
} from "../../../store/index.ts";
import { type BenchTier, CHAIN_BLOCKS } from "./bench-tier.ts";

/** Nothing is late here. */
const PATIENT = { tiers: 0, deadlineMs: 3_600_000, stopAtMiss: false };

/**
 * Blocks by number, in chains of `CHAIN_BLOCKS`: written and read as an engine's frames would have
 * it, through reserve, commit, the tier's writer, acquire and the tier's reader. The bytes are what
 * lies in the slot already: an engine's copy is not what is measured here.
 */
export class BenchBlocks {
  readonly #tier: BenchTier;
  readonly #batch = createAddressBatch(CHAIN_BLOCKS);
  readonly #handles = createHandleBatch(CHAIN_BLOCKS);
  readonly #signal: AbortSignal;

  constructor(tier: BenchTier, signal: AbortSignal) {
    this.#tier = tier;
    this.#signal = signal;
  }

  /** Names blocks [first, first + count) of one chain, with keys. */
  name(batch: AddressBatch, first: number, count: number): void {
    const { native, namespaceKey, blockBytes, store } = this.#tier;
    const ids = new BigUint64Array(count);
    for (let i = 0; i < count; i++) ids[i] = BigInt(first + i);
    native.chainDigests(namespaceKey, new Uint8Array(ids.buffer), 8, batch.digests);
    batch.count = count;
    batch.layer = LAYER_ALL;
    batch.bytes.fill(blockBytes, 0, count);
    batch.parents.fill(0, 0, DIGEST_BYTES);
    batch.parents.set(batch.digests.subarray(0, (count - 1) * DIGEST_BYTES), DIGEST_BYTES);
    store.deriveKeys(batch, true);
  }

  /**
   * Writes whole chains; resolves when all of them are on SSD. `onChain` is called after each
   * commit.
   */
  async write(first: number, count: number, onChain = () => {}): Promise<void> {
    assert(first % CHAIN_BLOCKS === 0 && count % CHAIN_BLOCKS === 0, "whole chains are written");
    const { store, queueBlocksMax } = this.#tier;
    const { writer } = store.ssd!;
    const written = store.ssdStats.writtenBlocks;
    for (let at = first; at < first + count; at += CHAIN_BLOCKS) {
      while (writer.queuedBlocks > queueBlocksMax) await writer.oneSettled();
      this.#signal.throwIfAborted();
      await this.#writeChain(at);
      onChain();
    }
    await writer.settled();
    const lost = count - (store.ssdStats.writtenBlocks - written);
    if (lost > 0) throw failed(`${lost} of ${count} blocks were not written to SSD`);
  }

  async #writeChain(first: number): Promise<void> {
    const { holder } = this.#tier;
    const handles = this.#handles;
    this.name(this.#batch, first, CHAIN_BLOCKS);
    holder.reserve(this.#batch, handles);
    mustBeOk(handles, "has no room in RAM");
    handles.flags.fill(0);
    await holder.commit(handles);
    mustBeOk(handles, "was not committed");
  }

  /** Reads these blocks, so many at the same time; nanoseconds of each. */
  async read(numbers: readonly number[], atOnce: number): Promise<number[]> {
    const { holder, store } = this.#tier;
    const before = store.ssdStats.readBlocks;
    const taken: number[] = [];
    let next = 0;
    const reader = async () => {
      const batch = createAddressBatch(1);
      const handles = createHandleBatch(1);
      while (next < numbers.length) {
        this.#signal.throwIfAborted();
        this.name(batch, numbers[next++]!, 1);
        const start = Bun.nanoseconds();
        const got = (await holder.acquire(batch, PATIENT, handles)) ?? handles;
        taken.push(Bun.nanoseconds() - start);
        mustBeOk(got, "was not read from SSD");
        holder.release(got);
      }
    };
    await Promise.all(Array.from({ length: atOnce }, reader));
    const fromSsd = store.ssdStats.readBlocks - before;
    if (fromSsd !== numbers.length)
      throw failed(`${numbers.length - fromSsd} reads did not reach the SSD`);
    return taken;
  }
}

function mustBeOk(handles: HandleBatch, what: string): void {
  for (let i = 0; i < handles.count; i++) {
    if (handles.outcome[i] !== BlockOutcome.ok) throw failed(`a block ${what}`);
  }
}

function failed(text: string): HearthError {
  const fix = "look at the kernel log for this drive, and whether its file system is full";
  return new HearthError("SSD_UNAVAILABLE", text, { fix });
}
