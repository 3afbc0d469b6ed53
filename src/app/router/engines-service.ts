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
  /** Store for the saved state of engines. Null: the router keeps no state across restarts. */
  readonly saves: EngineStateStore | null;
  /**
   * Called when an engine disconnects, reconnects or restarts, so that its settings are queried
   * again.
   */
  readonly onChanged: (worker: WorkerId) => void;
  /**
   * Returns one line for each worker whose API has been unreachable for at least `ms` milliseconds.
   */
  readonly lostApis: (ms: number) => readonly string[];
}

/** Time after which an unreachable engine raises a health code. */
const REACH_MS = 5_000;
const LOOK_MS = 500;

interface Followed {
  readonly links: readonly EngineLink[];
  readonly sinceMs: number;
  readonly targets: DisposableStack;
}

/** Receives the events of engines on hosts without an agent, over one connection per rank. */
export class EnginesService implements AsyncDisposable {
  readonly #parts: EnginesServiceParts;
  readonly #followed = new Map<WorkerId, Followed>();
  /** Connections being closed. */
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

  /** True if the router is connected to every followed rank of the worker. */
  isHeard(worker: WorkerId): boolean {
    const links = this.#followed.get(worker)?.links ?? [];
    return links.every(({ report }) => report.isReached);
  }

  /**
   * True if the router has reached each engine, and each engine with a replay endpoint has sent its
   * replay.
   */
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

  /** Stops receiving the engine's events. Saved state is kept. */
  leave(worker: WorkerId): void {
    this.#end(worker);
  }

  /** Stops receiving the events of a removed worker and deletes its saved state. */
  forget(worker: WorkerId): void {
    this.#end(worker);
    this.#parts.saves?.forget(worker);
  }

  /**
   * Offers the tokens of a request to the engines of its model. The hashes may identify blocks that
   * engines cached before the router received their events.
   */
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
    // Dispose at once: late events of these connections must not change a new connection's state.
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

/** Returns a line if the engine's block size differs from the configured one. */
function mismatchesOf(report: EngineReport): string[] {
  const { worker, rank, configuredBlockTokens: configured, blockTokens } = report;
  if (configured === null || blockTokens === null || configured === blockTokens) return [];
  const sizes = `block_tokens is ${configured}, its engine's blocks have ${blockTokens}`;
  return [`${worker}/${rank}: ${sizes}`];
}

interface EngineStateStoreOptions {
  /** Folder for saved state, used by this router only. Created if missing. */
  readonly folder: string;
  readonly everyMs: number;
  readonly logger: Logger;
}

const SUFFIX = ".feed";
const HEAD_BYTES = 4;
const CHECK_BYTES = 8;

/**
 * Saved state of followed engines, one file per rank. Each file has pages with their lengths (u32
 * LE), then XXH3 (u64 LE) over all pages. Files are replaced atomically.
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

  /** Reads the saved state of one rank. Returns null if there is none or the file is damaged. */
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

  /** Deletes the saved state of all engines. */
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
