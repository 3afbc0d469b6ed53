import { mkdirSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { open, rename } from "node:fs/promises";
import { join } from "node:path";
import type { EngineReport } from "../../api/index.ts";
import { type ListedWorker, zmqOfRank } from "../../config/index.ts";
import { type Clock, messageOf, type Random, type WorkerId } from "../../core/index.ts";
import { decodeSavedIngest, type SavedIngest } from "../../events/index.ts";
import type { Native } from "../../native/index.ts";
import type { Health, Logger } from "../../observability/index.ts";
import type { IndexSync, RouteRequest } from "../../router/index.ts";
import type { EngineFacts } from "./engine-discovery.ts";
import { EngineLink } from "./engine-link.ts";

interface EnginesServiceParts {
  readonly native: Native;
  readonly clock: Clock;
  readonly random: Random;
  readonly logger: Logger;
  readonly health: Health;
  readonly sync: Pick<IndexSync, "engine">;
  /** Null: no state is kept across restarts. */
  readonly saves: EngineStateStore | null;
  /** Query the engine's settings again: it left, returned or restarted. */
  readonly onChanged: (worker: WorkerId) => void;
  /** Workers whose API was not reached within `ms` milliseconds, one line each. */
  readonly lostApis: (ms: number) => readonly string[];
}

/** An engine not reached within this time raises a health code. */
const REACH_MS = 5_000;
const LOOK_MS = 500;

interface Followed {
  readonly links: readonly EngineLink[];
  readonly sinceMs: number;
  readonly targets: DisposableStack;
}

/** Follows the engines of workers without an agent, one connection per rank. */
export class EnginesService implements AsyncDisposable {
  readonly #parts: EnginesServiceParts;
  readonly #followed = new Map<WorkerId, Followed>();
  /** Followers being closed. */
  readonly #ending = new Set<Promise<void>>();
  readonly #watches: readonly Disposable[];

  constructor(parts: EnginesServiceParts) {
    const { clock, saves } = parts;
    this.#parts = parts;
    this.#watches = [
      clock.every(LOOK_MS, () => this.#look()),
      ...(saves === null ? [] : [clock.every(saves.everyMs, () => void this.#save())]),
    ];
  }

  get reports(): readonly EngineReport[] {
    return this.#links().map(({ report }) => report);
  }

  find(worker: WorkerId, rank: number): EngineReport | null {
    return this.#followed.get(worker)?.links[rank]?.report ?? null;
  }

  /** True if events of all followed ranks of the worker can be received. */
  isHeard(worker: WorkerId): boolean {
    const links = this.#followed.get(worker)?.links ?? [];
    return links.every(({ report }) => report.isReached);
  }

  /** True if each engine was reached and its replay has completed. */
  get isSettled(): boolean {
    return this.reports.every(
      ({ wasReached, hasReplay, isCurrent }) => wasReached && (isCurrent || !hasReplay),
    );
  }

  listen(listed: ListedWorker, facts: EngineFacts): void {
    const worker = listed.name as WorkerId;
    this.#end(worker);
    if (listed.events === null || listed.model === null) return;
    const targets = new DisposableStack();
    const links = Array.from({ length: listed.ranks }, (_, rank) =>
      this.#follow(listed, facts, rank, targets),
    );
    this.#followed.set(worker, { links, targets, sinceMs: this.#parts.clock.monotonicMs() });
  }

  /** Stops following the engine. It may be followed again. */
  leave(worker: WorkerId): void {
    this.#end(worker);
  }

  /** The worker is removed: drops all state of its engine. */
  forget(worker: WorkerId): void {
    this.#end(worker);
    this.#parts.saves?.forget(worker);
  }

  /** The tokens of a request may identify blocks that engines held before they were followed. */
  prompted({ model, prompt, loraName, cacheSalt }: RouteRequest): void {
    if (prompt.kind !== "tokens" || loraName) return;
    for (const link of this.#links()) {
      if (link.model === model) link.learn({ tokens: prompt.tokens, cacheSalt: cacheSalt ?? null });
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const watch of this.#watches) watch[Symbol.dispose]();
    await this.#save();
    for (const worker of [...this.#followed.keys()]) this.#end(worker);
    await Promise.allSettled(this.#ending);
    this.#parts.health.clear("ROUTER_ENGINE");
    this.#parts.health.clear("ROUTER_BLOCK_TOKENS");
  }

  #links(): EngineLink[] {
    return [...this.#followed.values()].flatMap(({ links }) => links);
  }

  #end(worker: WorkerId): void {
    const followed = this.#followed.get(worker);
    if (followed === undefined) return;
    this.#followed.delete(worker);
    // Dispose at once: late events of these connections must not affect the worker's next follower.
    followed.targets.dispose();
    const closing = Promise.all(followed.links.map((link) => link[Symbol.asyncDispose]()));
    const ending = closing.then(() => void this.#ending.delete(ending));
    this.#ending.add(ending);
  }

  #follow(
    listed: ListedWorker,
    facts: EngineFacts,
    rank: number,
    targets: DisposableStack,
  ): EngineLink {
    const { native, clock, random, logger, sync, saves, onChanged } = this.#parts;
    const worker = listed.name as WorkerId;
    const target = targets.use(sync.engine(worker, rank));
    const { blockTokens, replay, hashSeed } = listed;
    return new EngineLink({
      ...{ native, clock, random, logger, worker, rank, model: listed.model!, blockTokens, target },
      hashSeed,
      endpoint: zmqOfRank(listed.events!, rank),
      replayEndpoint: replay === null ? null : zmqOfRank(replay, rank),
      totalBlocks: facts.totalBlocks[rank] ?? null,
      saved: saves?.read(worker, rank) ?? null,
      onChanged: () => onChanged(worker),
    });
  }

  async #save(): Promise<void> {
    const { saves } = this.#parts;
    if (saves === null) return;
    for (const link of this.#links()) {
      const { worker, rank } = link.report;
      const pages = await link.save();
      if (pages !== null) await saves.write(worker, rank, pages);
    }
  }

  #look(): void {
    const { health, clock, lostApis } = this.#parts;
    const nowMs = clock.monotonicMs();
    const lost = [...this.#followed.values()]
      .flatMap(({ links, sinceMs }) => links.map(({ report }) => ({ ...report, sinceMs })))
      .filter(({ isReached, wasReached, sinceMs }) => {
        return !isReached && (wasReached || nowMs - sinceMs >= REACH_MS);
      })
      .map(({ worker, rank, endpoint }) => `${worker}/${rank} at ${endpoint}`);
    lost.push(...lostApis(REACH_MS));
    health.report("ROUTER_ENGINE", lost.join(", ") || null);
    const wrong = this.reports.flatMap(mismatchesOf);
    health.report("ROUTER_BLOCK_TOKENS", wrong.join(", ") || null);
  }
}

/** Describes a configured block size that differs from the engine's. */
function mismatchesOf(report: EngineReport): string[] {
  const { worker, rank, configuredBlockTokens: configured, blockTokens } = report;
  if (configured === null || blockTokens === null || configured === blockTokens) return [];
  const sizes = `block_tokens is ${configured}, its engine's blocks have ${blockTokens}`;
  return [`${worker}/${rank}: ${sizes}`];
}

interface EngineStateStoreOptions {
  /** Directory used by this router only. Created if missing. */
  readonly folder: string;
  readonly everyMs: number;
  readonly logger: Logger;
}

const SUFFIX = ".feed";
const HEAD_BYTES = 4;
const CHECK_BYTES = 8;

/**
 * Saved state of followed engines, one file per rank: pages with their lengths (u32 LE), then XXH3
 * (u64 LE) over all of them. Files are replaced atomically.
 */
export class EngineStateStore {
  readonly everyMs: number;
  readonly #options: EngineStateStoreOptions;
  #failures = 0;

  constructor(options: EngineStateStoreOptions) {
    this.#options = options;
    this.everyMs = options.everyMs;
    mkdirSync(options.folder, { recursive: true, mode: 0o750 });
  }

  get failures(): number {
    return this.#failures;
  }

  /** Null if nothing was saved or the file is damaged. */
  read(worker: WorkerId, rank: number): SavedIngest | null {
    const path = this.#pathOf(worker, rank);
    let bytes: Uint8Array;
    try {
      bytes = readFileSync(path);
    } catch {
      return null;
    }
    const pages = pagesIn(bytes);
    const saved = pages === null ? null : decodeSavedIngest(pages);
    if (saved === null) this.#options.logger.warn("saved engine state damaged", { path });
    return saved;
  }

  async write(worker: WorkerId, rank: number, pages: readonly Uint8Array[]): Promise<void> {
    const path = this.#pathOf(worker, rank);
    const draft = `${path}.new`;
    try {
      {
        await using file = await open(draft, "w", 0o640);
        await file.write(bytesOf(pages));
        await file.sync();
      }
      await rename(draft, path);
    } catch (thrown) {
      this.#failures++;
      const why = messageOf(thrown);
      this.#options.logger.warn("saving engine state failed", { path, why });
      rmSync(draft, { force: true });
    }
  }

  forget(worker: WorkerId): void {
    const prefix = `${worker}.`;
    for (const name of readdirSync(this.#options.folder)) {
      const rank = name.slice(prefix.length, -SUFFIX.length);
      const isOf = name.startsWith(prefix) && name.endsWith(SUFFIX) && /^[0-9]+$/.test(rank);
      if (isOf) rmSync(join(this.#options.folder, name), { force: true });
    }
  }

  /** Deletes all saved state. */
  reset(): void {
    rmSync(this.#options.folder, { recursive: true, force: true });
    mkdirSync(this.#options.folder, { recursive: true, mode: 0o750 });
  }

  #pathOf(worker: WorkerId, rank: number): string {
    return join(this.#options.folder, `${worker}.${rank}${SUFFIX}`);
  }
}

function bytesOf(pages: readonly Uint8Array[]): Uint8Array {
  const parts = pages.flatMap((page) => {
    const head = Buffer.alloc(HEAD_BYTES);
    head.writeUInt32LE(page.length);
    return [head, page];
  });
  const body = Buffer.concat(parts);
  const check = Buffer.alloc(CHECK_BYTES);
  check.writeBigUInt64LE(Bun.hash.xxHash3(body));
  return Buffer.concat([body, check]);
}

function pagesIn(bytes: Uint8Array): Uint8Array[] | null {
  const end = bytes.length - CHECK_BYTES;
  if (end < 0) return null;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const body = bytes.subarray(0, end);
  if (view.getBigUint64(end, true) !== Bun.hash.xxHash3(body)) return null;
  const pages: Uint8Array[] = [];
  for (let at = 0; at < end; ) {
    if (at + HEAD_BYTES > end) return null;
    const length = view.getUint32(at, true);
    at += HEAD_BYTES;
    if (at + length > end) return null;
    pages.push(body.subarray(at, at + length));
    at += length;
  }
  return pages;
}
