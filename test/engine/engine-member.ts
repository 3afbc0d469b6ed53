import { LAYER_ALL } from "../../src/core/index.ts";
import { EngineClient } from "../../src/engine/index.ts";
import { IdentifyKind, LookupFlag, type LookupRequest } from "../../src/engine/protocol/index.ts";
import { encodeManifest, manifestOf, type NamespaceManifest } from "../../src/identity/index.ts";
import { loadNative } from "../../src/native/index.ts";
import { createAddressBatch, createHandleBatch } from "../../src/store/index.ts";
import { type OutcomeName, outcomeOf } from "../store/names.ts";
import { BLOCK_TOKENS } from "./agent-kit.ts";

const BYTES = 5_000;

/** A 16-byte chain key of an engine. */
export function keyOf(text: string): Uint8Array {
  return new Bun.CryptoHasher("md5").update(text).digest();
}

export const keysOf = (...texts: string[]) => Uint8Array.from(texts.flatMap((t) => [...keyOf(t)]));

/** A request for these chain keys with the named flags. */
export function lookupOf(
  keys: readonly string[],
  flags: readonly (keyof typeof LookupFlag)[] = [],
  rest: Partial<LookupRequest> = {},
): LookupRequest {
  return {
    ...{ layer: LAYER_ALL, tiers: 0, kind: IdentifyKind.shortKeys, deadlineMs: 60_000, holdMs: 0 },
    ...{ readers: 0, namespace: 0, parent: null, source: "", media: [], count: keys.length },
    flags: flags.reduce((mask, flag) => mask | LookupFlag[flag], 0),
    items: keysOf(...keys),
    ...rest,
  };
}

/** One connection of an engine that names blocks by chain keys of 16 bytes. */
export class Member implements AsyncDisposable {
  readonly client: EngineClient;

  private constructor(client: EngineClient) {
    this.client = client;
  }

  static async connect(
    socketPath: string,
    manifest: Partial<NamespaceManifest> = {},
    name = "member",
  ): Promise<Member> {
    const own = manifestOf({
      ...{ model: "test", dtype: "bfloat16", layout: "test:flat", blockTokens: BLOCK_TOKENS },
      ...manifest,
    });
    const options = { socketPath, name, manifest: encodeManifest(own) };
    return new Member(await EngineClient.connect(loadNative(), options));
  }

  join(engine = "engine", role: 0 | 1 | 2 = 0): Promise<number> {
    return this.client.engine.join({ engine: keyOf(engine), role });
  }

  async #batch(keys: readonly string[]) {
    const batch = createAddressBatch(Math.max(1, keys.length));
    const request = { kind: IdentifyKind.shortKeys, layer: LAYER_ALL, count: keys.length };
    await this.client.identify({ ...request, items: keysOf(...keys) }, batch);
    batch.layer = LAYER_ALL;
    batch.count = keys.length;
    batch.parents.set(batch.digests.subarray(0, 32 * (keys.length - 1)), 32);
    batch.bytes.fill(BYTES);
    return batch;
  }

  /** Stores a chain of blocks. */
  async put(...keys: string[]): Promise<OutcomeName[]> {
    const handles = await this.reserve(...keys);
    return this.commit(handles);
  }

  async reserve(...keys: string[]) {
    const batch = await this.#batch(keys);
    const handles = createHandleBatch(keys.length);
    await this.client.reserve(batch, 0n, handles);
    return handles;
  }

  async commit(handles: Awaited<ReturnType<Member["reserve"]>>): Promise<OutcomeName[]> {
    const outcomes = Array.from(handles.outcome, outcomeOf);
    const ok = createHandleBatch(handles.count);
    ok.count = 0;
    for (let i = 0; i < handles.count; i++) {
      if (outcomes[i] !== "ok") continue;
      ok.slot[ok.count] = handles.slot[i]!;
      ok.generation[ok.count++] = handles.generation[i]!;
    }
    if (ok.count > 0) await this.client.commit(ok);
    let at = 0;
    return outcomes.map((one) => (one === "ok" ? outcomeOf(ok.outcome[at++]!) : one));
  }

  /** Acquires blocks and releases them. */
  async get(...keys: string[]): Promise<OutcomeName[]> {
    const handles = createHandleBatch(keys.length);
    const options = { tiers: 0, deadlineMs: 0, stopAtMiss: false };
    await this.client.acquire(await this.#batch(keys), options, handles);
    const outcomes = Array.from(handles.outcome.subarray(0, keys.length), outcomeOf);
    const held = createHandleBatch(keys.length);
    held.count = 0;
    for (const [i, outcome] of outcomes.entries()) {
      if (outcome !== "ok") continue;
      held.slot[held.count] = handles.slot[i]!;
      held.generation[held.count++] = handles.generation[i]!;
    }
    this.client.release(held);
    return outcomes;
  }

  lookup(...request: Parameters<EngineClient["engine"]["lookup"]>) {
    return this.client.engine.lookup(...request);
  }

  async announce(keys: readonly string[], ttlMs: number, flags = 0): Promise<OutcomeName[]> {
    const into = createHandleBatch(keys.length);
    const request = { layer: LAYER_ALL, ttlMs, kind: IdentifyKind.shortKeys, flags, namespace: 0 };
    const named = { count: keys.length, items: keysOf(...keys) };
    await this.client.engine.announce({ ...request, ...named }, into);
    return Array.from(into.outcome.subarray(0, keys.length), outcomeOf);
  }

  async unhold(...holds: number[]): Promise<OutcomeName[]> {
    const into = createHandleBatch(holds.length);
    await this.client.engine.unhold(holds, into);
    return Array.from(into.outcome.subarray(0, holds.length), outcomeOf);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.client[Symbol.asyncDispose]();
  }
}
