import { assert, DIGEST_BYTES, HearthError, LAYER_ALL } from "../../core/index.ts";
import { EngineClient, Outcome } from "../../engine/index.ts";
import { encodeManifest, manifestOf, namespaceSecret, withMacKey } from "../../identity/index.ts";
import {
  BlockMacs,
  MAC_BYTES,
  type MacBlock,
  type Native,
  nativeBuffer,
} from "../../native/index.ts";
import {
  type AddressBatch,
  CommitFlag,
  createAddressBatch,
  createHandleBatch,
  type HandleBatch,
} from "../../store/index.ts";

/** Blocks that are kept resident and read, unless told otherwise. */
const RESIDENT = 64;
/** Blocks handled by one call in the throughput runs. */
const AT_ONCE = 64;
/** Blocks written by one call: the agent verifies one such batch while the next is copied. */
const WRITTEN_AT_ONCE = 16;
/** Blocks moved by one throughput run: enough to leave every cache. */
const MOVED = 128;
const NOISE_BYTES = 65_536;

/** What the engine benchmark does over and over. Throughput runs answer the bytes they moved. */
export interface EngineProbe {
  fillResident(): Promise<void>;
  acquireRelease(blocks: number): Promise<void>;
  match(blocks: number): Promise<void>;
  /** So many acquires of one block on the way at once, each released as it comes. */
  pipelined(count: number): Promise<void>;
  copyPrivate(): number;
  copyOut(verified: boolean): Promise<number>;
  /** The first `count` resident blocks, each once. */
  copyOutOnce(count: number): Promise<number>;
  put(): Promise<number>;
}

const MANIFEST = manifestOf({
  model: "bench",
  dtype: "pattern",
  layout: "hearth:bench",
  blockTokens: 64,
});

export interface EngineProbeOptions {
  readonly socketPath: string;
  readonly blockBytes: number;
  /** Blocks that are kept resident. */
  readonly resident?: number;
  /** The blocks' namespace has a key: each copy is made with its MAC. */
  readonly hasMacs?: boolean;
}

/** Connects to the benchmark's server; closing the client ends the probe. */
export async function connectEngineProbe(
  native: Native,
  options: EngineProbeOptions,
): Promise<{ readonly client: EngineClient; readonly probe: EngineProbe }> {
  const { socketPath, hasMacs = false } = options;
  const secret = namespaceSecret(native, crypto.getRandomValues(new Uint8Array(32)));
  const manifest = hasMacs ? withMacKey(MANIFEST, secret.id) : MANIFEST;
  const client = await EngineClient.connect(native, {
    ...{ socketPath, hasMacs, name: "bench" },
    manifest: encodeManifest(manifest),
  });
  const macs = hasMacs ? new BlockMacs(native, secret.key) : null;
  return { client, probe: createEngineProbe(native, client, options, macs) };
}

function macAt({ mac }: HandleBatch, i: number): Uint8Array {
  return mac.subarray(i * MAC_BYTES, (i + 1) * MAC_BYTES);
}

function createEngineProbe(
  native: Native,
  client: EngineClient,
  { blockBytes, resident = RESIDENT }: EngineProbeOptions,
  macs: BlockMacs | null,
): EngineProbe {
  const { arena } = client;
  const space = client.hello.namespaceId;
  const blocks = createAddressBatch(AT_ONCE);
  const handles = createHandleBatch(AT_ONCE);
  /** Two batches of writes: one is verified by the agent while the next is copied. */
  const writes = [createHandleBatch(AT_ONCE), createHandleBatch(AT_ONCE)] as const;
  const best = new Uint8Array(AT_ONCE);
  const single = Array.from({ length: 64 }, () => createHandleBatch(1));
  // A copy starts cold and ends in a buffer that is used again, as a staging buffer would be.
  const target = nativeBuffer(blockBytes);
  const privateSource = nativeBuffer(RESIDENT * blockBytes);
  // Every page must be its own: untouched ones are all the same page of zeros, and copy at cache
  // speed.
  const noise = crypto.getRandomValues(new Uint8Array(NOISE_BYTES));
  for (let at = 0; at < privateSource.bytes.length; at += NOISE_BYTES) {
    privateSource.bytes.set(noise.subarray(0, privateSource.bytes.length - at), at);
  }
  const acquireAll = { tiers: 0, deadlineMs: 0, stopAtMiss: false };
  let nextId = 0;

  /** Names blocks [first, first + count): the same numbers give the same blocks. */
  function name(into: AddressBatch, first: number, count: number): void {
    const ids = new Uint32Array(count * 2);
    for (let i = 0; i < count; i++) ids[i * 2] = first + i;
    native.chainDigests(space, new Uint8Array(ids.buffer), 8, into.digests);
    into.layer = LAYER_ALL;
    into.count = count;
    into.bytes.fill(blockBytes, 0, count);
    into.parents.fill(0, 0, count * DIGEST_BYTES);
  }

  /** Reserves and copies what `blocks` names; the commit is under way when it returns. */
  async function writeNamed(written: HandleBatch): Promise<{ committed: Promise<void> }> {
    await client.reserve(blocks, 0n, handles);
    written.count = 0;
    for (let i = 0; i < handles.count; i++) {
      if (handles.outcome[i] !== Outcome.ok) continue;
      const next = written.count++;
      written.slot[next] = handles.slot[i]!;
      written.generation[next] = handles.generation[i]!;
      const source = {
        bytes: privateSource.bytes,
        address: privateSource.address + i * blockBytes,
      };
      written.flags[next] = CommitFlag.checksumGiven | (macs === null ? 0 : CommitFlag.macGiven);
      written.checksum[next] =
        macs === null
          ? arena.copyIn(handles.offset[i]!, source, blockBytes, true)
          : macs.copyIn(blockAt(i), source, macAt(written, next));
    }
    return { committed: client.commit(written) };
  }

  /** Block `i` of `blocks` in the slot that `handles` has for it. */
  function blockAt(i: number): MacBlock {
    const digest = blocks.digests.subarray(i * DIGEST_BYTES, (i + 1) * DIGEST_BYTES);
    const offset = handles.offset[i]!;
    return { region: arena, offset, bytes: blockBytes, digest, layer: LAYER_ALL };
  }

  /** Copies block `i` out; false: the copy is not what was written. */
  function copyOne(i: number, verified: boolean): boolean {
    if (verified && macs !== null) return macs.copyOut(blockAt(i), target, macAt(handles, i));
    const sum = arena.copyOut(handles.offset[i]!, target, blockBytes, verified);
    return !verified || sum === handles.checksum[i];
  }

  function allAcquired(got: HandleBatch): void {
    for (let i = 0; i < got.count; i++) {
      if (got.outcome[i] === Outcome.ok) continue;
      throw new HearthError("LIMIT", "a resident block went while it was measured", {
        fix: "give the benchmark a larger arena",
      });
    }
  }

  /** Acquires, copies out and releases blocks [first, first + count). */
  async function copyBatch(first: number, count: number, verified: boolean): Promise<void> {
    name(blocks, first, count);
    await client.acquire(blocks, acquireAll, handles);
    allAcquired(handles);
    for (let i = 0; i < count; i++) {
      assert(copyOne(i, verified), "a block is read as it was written");
    }
    client.release(handles);
  }

  return {
    async fillResident() {
      for (let at = 0; at < resident; at += AT_ONCE) {
        name(blocks, at, Math.min(AT_ONCE, resident - at));
        await (await writeNamed(writes[0])).committed;
        assert(writes[0].count === blocks.count, "the arena of a benchmark is empty at first");
      }
      nextId = resident;
    },
    async acquireRelease(count) {
      blocks.count = count;
      await client.acquire(blocks, acquireAll, handles);
      client.release(handles);
    },
    async match(count) {
      blocks.count = count;
      await client.match(blocks, 0, best);
    },
    async pipelined(count) {
      blocks.count = 1;
      const acquires = single.slice(0, count).map(async (handle) => {
        await client.acquire(blocks, acquireAll, handle);
        client.release(handle);
      });
      await Promise.all(acquires);
    },
    copyPrivate() {
      for (let i = 0; i < MOVED; i++) {
        const at = (i % RESIDENT) * blockBytes;
        target.bytes.set(privateSource.bytes.subarray(at, at + blockBytes), 0);
      }
      return MOVED * blockBytes;
    },
    async copyOut(verified) {
      for (let at = 0; at < MOVED; at += AT_ONCE) {
        await copyBatch(at % RESIDENT, AT_ONCE, verified);
      }
      return MOVED * blockBytes;
    },
    async copyOutOnce(count) {
      for (let at = 0; at < count; at += AT_ONCE) {
        await copyBatch(at, Math.min(AT_ONCE, count - at), false);
      }
      return count * blockBytes;
    },
    async put() {
      let count = 0;
      let before: Promise<void> = Promise.resolve();
      for (let at = 0; at < MOVED; at += WRITTEN_AT_ONCE) {
        name(blocks, nextId, WRITTEN_AT_ONCE);
        nextId += WRITTEN_AT_ONCE;
        const written = writes[(at / WRITTEN_AT_ONCE) % 2 === 0 ? 0 : 1];
        const { committed } = await writeNamed(written);
        await before;
        before = committed;
        count += written.count;
      }
      await before;
      return count * blockBytes;
    },
  };
}
