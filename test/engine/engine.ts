import { LAYER_ALL } from "../../src/core/index.ts";
import type { EngineClient } from "../../src/engine/index.ts";
import { createHandleBatch, type HandleBatch } from "../../src/store/index.ts";
import {
  type BlockName,
  type BlockSpec,
  batchOf,
  type OutcomeName,
  outcomeOf,
  seedOf,
  specOf,
} from "../store/names.ts";

type Blocks = readonly (BlockName | BlockSpec)[];

/** A granted slot. */
export interface Handle {
  readonly name: BlockName;
  readonly outcome: OutcomeName;
  readonly slot: number;
  readonly generation: number;
  readonly offset: number;
  readonly bytes: number;
  readonly checksum: bigint;
}

/** A test engine: blocks by name, with bytes derived from the name. */
export class Engine implements AsyncDisposable {
  readonly client: EngineClient;

  constructor(client: EngineClient) {
    this.client = client;
  }

  async reserve(...blocks: Blocks): Promise<Handle[]> {
    const batch = batchOf(blocks, LAYER_ALL);
    const out = createHandleBatch(batch.capacity);
    await this.client.reserve(batch, 0n, out);
    return handlesOf(
      blocks.map((block) => specOf(block).name),
      out,
    ).map((handle, i) => ({
      ...handle,
      bytes: batch.bytes[i]!,
    }));
  }

  write(handles: readonly Handle[]): void {
    for (const { name, outcome, offset, bytes } of handles) {
      if (outcome === "ok") this.client.arena.fill(offset, bytes, seedOf(name));
    }
  }

  /** `wrong`: sends a checksum that does not match the bytes; otherwise sends none. */
  async commit(handles: readonly Handle[], wrong = false): Promise<OutcomeName[]> {
    const batch = handleBatch(handles);
    if (wrong) {
      batch.flags.fill(1);
      batch.checksum.fill(1n);
    }
    await this.client.commit(batch);
    return outcomesOf(batch);
  }

  async abort(handles: readonly Handle[]): Promise<OutcomeName[]> {
    const batch = handleBatch(handles);
    await this.client.abort(batch);
    return outcomesOf(batch);
  }

  async put(...blocks: Blocks): Promise<OutcomeName[]> {
    const handles = await this.reserve(...blocks);
    this.write(handles);
    const granted = handles.filter(({ outcome }) => outcome === "ok");
    const committed = granted.length === 0 ? [] : await this.commit(granted);
    return handles.map(({ outcome }) => (outcome === "ok" ? committed.shift()! : outcome));
  }

  async acquire(...names: BlockName[]): Promise<Handle[]> {
    const batch = batchOf(names, LAYER_ALL);
    const out = createHandleBatch(batch.capacity);
    await this.client.acquire(batch, { tiers: 0, deadlineMs: 0, stopAtMiss: false }, out);
    return handlesOf(names, out);
  }

  /** Whether every byte behind the handle belongs to the block. */
  proves({ name, offset, bytes, checksum }: Handle): boolean {
    const { arena } = this.client;
    return (
      arena.firstWrong(offset, bytes, seedOf(name)) === null &&
      arena.checksum(offset, bytes) === checksum
    );
  }

  release(handles: readonly Handle[]): void {
    if (handles.length > 0) this.client.release(handleBatch(handles));
  }

  /** Reads blocks and releases them. `ok` only if every byte is right. */
  async get(...names: BlockName[]): Promise<(OutcomeName | "wrong bytes")[]> {
    const handles = await this.acquire(...names);
    const read = handles.map((handle) => {
      if (handle.outcome !== "ok") return handle.outcome;
      return this.proves(handle) ? "ok" : "wrong bytes";
    });
    this.release(handles.filter(({ outcome }) => outcome === "ok"));
    return read;
  }

  async match(...names: BlockName[]): Promise<number> {
    return this.client.match(batchOf(names, LAYER_ALL), 0, new Uint8Array(names.length));
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.client[Symbol.asyncDispose]();
  }
}

function handlesOf(names: readonly BlockName[], out: HandleBatch): Handle[] {
  return names.map((name, i) => ({
    name,
    outcome: outcomeOf(out.outcome[i]!),
    slot: out.slot[i]!,
    generation: out.generation[i]!,
    offset: out.offset[i]!,
    bytes: out.bytes[i]!,
    checksum: out.checksum[i]!,
  }));
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

function outcomesOf(batch: HandleBatch): OutcomeName[] {
  return Array.from(batch.outcome.subarray(0, batch.count), outcomeOf);
}
