import { assert, DIGEST_BYTES, LAYER_ALL, sleep, systemClock } from "../../core/index.ts";
import { EngineClient, Outcome } from "../../engine/index.ts";
import { type Native, type NativeBuffer, Region } from "../../native/index.ts";
import { createAddressBatch, createHandleBatch } from "../../store/index.ts";
import type { TraceRequest } from "../traces/index.ts";
import type { ReplayTally } from "./replay.ts";

export interface MockEngineOptions {
  readonly blockBytes: number;
  readonly socketPath: string;
  readonly manifest: Uint8Array;
  readonly namespaceKey: Uint8Array;
  readonly name: string;
  /** Milliseconds for which a request waits for free slots; 0 skips the write. */
  readonly storeTimeoutMs: number;
}

/** Milliseconds between attempts to store blocks. */
const RETRY_MS = 2;

/**
 * Number of slots reserved at a time: enough for few frames per prompt, and few enough to leave
 * slots for other clients.
 */
const SLOTS_AT_ONCE = 64;

/**
 * Simulates an engine. For each request it reads the cached blocks of the prompt from the agent and
 * writes the others, as if it had computed them. A block's bytes are a function of its digest, so
 * every read is verified.
 */
export class MockEngine implements AsyncDisposable {
  readonly #native: Native;
  readonly #client: EngineClient;
  readonly #options: MockEngineOptions;
  readonly #tally: ReplayTally;
  readonly #batches: ReturnType<typeof createEngineBatches>;
  /** Stands for GPU memory: source and destination of block copies. */
  readonly #gpu: Region;
  readonly #gpuView: NativeBuffer;
  #ids = new Uint8Array(0);
  #digests = new Uint8Array(0);

  private constructor(
    native: Native,
    client: EngineClient,
    options: MockEngineOptions,
    tally: ReplayTally,
  ) {
    this.#native = native;
    this.#client = client;
    this.#options = options;
    this.#tally = tally;
    this.#batches = createEngineBatches(Math.min(SLOTS_AT_ONCE, client.hello.itemsMax));
    const bytes = Math.ceil(options.blockBytes / 4096) * 4096;
    this.#gpu = Region.create(native, { bytes, hugePages: "off", lockMemory: "off" });
    this.#gpuView = this.#gpu.view(options.blockBytes);
  }

  static async connect(
    native: Native,
    options: MockEngineOptions,
    tally: ReplayTally,
  ): Promise<MockEngine> {
    const { socketPath, manifest, name } = options;
    const client = await EngineClient.connect(native, { socketPath, manifest, name });
    return new MockEngine(native, client, options, tally);
  }

  /** Serves one request and adds its results to the tally. */
  async serve(request: TraceRequest): Promise<void> {
    const { blocks } = request;
    this.#nameBlocks(blocks);
    this.#tally.requests++;
    this.#tally.blocksAsked += blocks.length;
    let hit = 0;
    while (hit < blocks.length) {
      const asked = Math.min(this.#batches.capacity, blocks.length - hit);
      const got = await this.#read(hit, asked);
      hit += got;
      if (got < asked) break;
    }
    this.#tally.countHit(request, hit);
    for (let at = hit; at < blocks.length; at += this.#batches.capacity) {
      await this.#writePatiently(at, Math.min(this.#batches.capacity, blocks.length - at));
    }
  }

  /**
   * Writes blocks; if the agent is full because its SSD is still writing, waits and tries again. A
   * real engine is slower than a replay and would rarely have to wait.
   */
  async #writePatiently(from: number, count: number): Promise<void> {
    const until = systemClock.monotonicMs() + this.#options.storeTimeoutMs;
    let done = await this.#write(from, count);
    while (done < count && systemClock.monotonicMs() < until) {
      await sleep(systemClock, RETRY_MS);
      done += await this.#write(from + done, count - done);
    }
    this.#tally.blocksFull += count - done;
  }

  /**
   * Computes the digests of a request's blocks. An id of the trace stands for a block and its whole
   * prefix, as a chain key does.
   */
  #nameBlocks(blocks: Uint32Array): void {
    const { length } = blocks;
    if (this.#ids.length < length * 8) {
      this.#ids = new Uint8Array(new ArrayBuffer(length * 16));
      this.#digests = new Uint8Array(new ArrayBuffer(length * 2 * DIGEST_BYTES));
    }
    const ids = new DataView(this.#ids.buffer);
    for (let i = 0; i < length; i++) ids.setUint32(i * 8, blocks[i], true);
    const items = this.#ids.subarray(0, length * 8);
    this.#native.chainDigests(this.#options.namespaceKey, items, 8, this.#digests);
  }

  #digest(index: number): Uint8Array {
    return this.#digests.subarray(index * DIGEST_BYTES, (index + 1) * DIGEST_BYTES);
  }

  /** Returns the seed of a block's bytes: the first eight bytes of its digest. */
  #seed(index: number): bigint {
    return new DataView(this.#digests.buffer).getBigUint64(index * DIGEST_BYTES, true);
  }

  /** Reads the leading cached blocks of [from, from + count) and returns their number. */
  async #read(from: number, count: number): Promise<number> {
    const { blocks, handles } = this.#batches;
    blocks.count = count;
    blocks.digests.set(this.#digests.subarray(from * DIGEST_BYTES, (from + count) * DIGEST_BYTES));
    const options = { tiers: 0, deadlineMs: 0, stopAtMiss: true };
    const start = Bun.nanoseconds();
    await this.#client.acquire(blocks, options, handles);
    this.#tally.acquireNs.add(Bun.nanoseconds() - start);
    let got = 0;
    while (got < count && handles.outcome[got] === Outcome.ok) got++;
    const damaged: number[] = [];
    for (let i = 0; i < got; i++) if (!this.#readBlock(from + i, i)) damaged.push(i);
    handles.count = got;
    if (damaged.length > 0) await this.#client.giveBack(handles, damaged);
    else if (got > 0) this.#client.release(handles);
    return got;
  }

  /** Copies a block out and verifies it. Returns false if the bytes differ from those committed. */
  #readBlock(index: number, at: number): boolean {
    const { handles } = this.#batches;
    const bytes = handles.bytes[at];
    if (bytes !== this.#options.blockBytes) {
      this.#tally.wrongBytes += Math.max(1, bytes);
      return true;
    }
    const start = Bun.nanoseconds();
    const checksum = this.#client.arena.copyOut(handles.offset[at], this.#gpuView, bytes, true);
    this.#tally.getNs += Bun.nanoseconds() - start;
    this.#tally.getBytes += bytes;
    const wrongAt = this.#gpu.firstWrong(0, bytes, this.#seed(index));
    const isRight = checksum === handles.checksum[at];
    if (!isRight || wrongAt !== null) this.#tally.wrongBytes += bytes - (wrongAt ?? 0);
    return isRight;
  }

  /**
   * Writes blocks [from, from + count). Returns how many the agent stored or already had, before
   * the first that found no slot.
   */
  async #write(from: number, count: number): Promise<number> {
    const { blocks, handles, written } = this.#batches;
    blocks.count = count;
    blocks.digests.set(this.#digests.subarray(from * DIGEST_BYTES, (from + count) * DIGEST_BYTES));
    for (let i = 0; i < count; i++) this.#nameParent(from + i, i);
    let start = Bun.nanoseconds();
    await this.#client.reserve(blocks, 0n, handles);
    let spentNs = Bun.nanoseconds() - start;
    written.count = 0;
    let done = 0;
    while (done < count && handles.outcome[done] !== Outcome.full) done++;
    for (let i = 0; i < count; i++) {
      if (handles.outcome[i] === Outcome.ok) spentNs += this.#writeBlock(from + i, i);
      else if (i < done) this.#tally.countRefused(handles.outcome[i]);
    }
    start = Bun.nanoseconds();
    if (written.count > 0) await this.#client.commit(written);
    this.#tally.putNs += spentNs + Bun.nanoseconds() - start;
    for (let i = 0; i < written.count; i++) {
      if (written.outcome[i] !== Outcome.ok) continue;
      this.#tally.blocksWritten++;
      this.#tally.putBytes += this.#options.blockBytes;
    }
    return done;
  }

  #nameParent(index: number, at: number): void {
    const { blocks } = this.#batches;
    blocks.bytes[at] = this.#options.blockBytes;
    if (index === 0) blocks.parents.fill(0, at * DIGEST_BYTES, (at + 1) * DIGEST_BYTES);
    else blocks.parents.set(this.#digest(index - 1), at * DIGEST_BYTES);
  }

  /**
   * Fills the block's bytes and copies them into the slot. Returns the nanoseconds of the copy
   * only, because a GPU would compute the bytes.
   */
  #writeBlock(index: number, at: number): number {
    const { handles, written } = this.#batches;
    const { blockBytes } = this.#options;
    assert(handles.bytes[at] >= blockBytes, "a slot has room for the block");
    this.#gpu.fill(0, blockBytes, this.#seed(index));
    const start = Bun.nanoseconds();
    const offset = handles.offset[at];
    const checksum = this.#client.arena.copyIn(offset, this.#gpuView, blockBytes, true);
    const spent = Bun.nanoseconds() - start;
    const next = written.count++;
    written.slot[next] = handles.slot[at];
    written.generation[next] = handles.generation[at];
    written.checksum[next] = checksum;
    written.flags[next] = 1;
    return spent;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#client[Symbol.asyncDispose]();
    this.#gpu[Symbol.dispose]();
  }
}

/** Batches of a mock engine, reused between requests. */
function createEngineBatches(capacity: number) {
  const blocks = createAddressBatch(capacity);
  // Traces have no layers, so each block is one object for all layers.
  blocks.layer = LAYER_ALL;
  return {
    capacity,
    blocks,
    handles: createHandleBatch(capacity),
    written: createHandleBatch(capacity),
  };
}
