import { mkdirSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { open, rename } from "node:fs/promises";
import { join } from "node:path";
import type { BusLog } from "../bus/index.ts";
import {
  type Clock,
  isWorkerId,
  type Json,
  messageOf,
  parseJson,
  stringifyJson,
} from "../core/index.ts";
import type { KeySpace } from "../observability/activity/index.ts";
import type { FollowedSource, ResidencyIngest } from "./ingest/index.ts";
import type { PrefixIndex } from "./prefix-index.ts";
import type { TargetId, WorkerRole, WorkerSpec, WorkerTable } from "./workers.ts";

interface SnapshotStoreOptions {
  /** Folder for snapshots, used by this router only. Created if missing. */
  readonly folder: string;
  readonly clock: Clock;
  readonly log: BusLog;
  readonly index: PrefixIndex;
  readonly table: WorkerTable;
  readonly ingest: ResidencyIngest;
  readonly everyMs: number;
  /** Number of index changes that triggers a save before `everyMs` has passed. */
  readonly snapshotThreshold: number;
}

/** Result of restoring a snapshot. `none`: nothing was restored; `why` says why, for a person. */
export type RestoreOutcome =
  | { readonly kind: "restored"; readonly sources: number; readonly ageMs: number }
  | { readonly kind: "none"; readonly why: string };

const STATE_FILE = "state.json";
const INDEX_FILE = /^index-[0-9]+(?:\.new)?$/;
/** Interval at which the store checks whether a save is due. */
const LOOK_MS = 1_000;

/**
 * Saves snapshots of the index periodically, with the sequence number of each agent's last event. A
 * restarted router restores the snapshot and requests only later events. Files are replaced
 * atomically; a failed save keeps the previous snapshot.
 */
export class SnapshotStore implements AsyncDisposable {
  readonly #options: SnapshotStoreOptions;
  readonly #watch: Disposable;
  #saving: Promise<boolean> | null = null;
  #savedMs: number;
  #savedChanges = 0;
  #generation: number;
  readonly stats = { saves: 0, failures: 0, restoredSources: 0 };
  #isOver = false;

  constructor(options: SnapshotStoreOptions) {
    this.#options = options;
    mkdirSync(options.folder, { recursive: true, mode: 0o750 });
    this.#generation = this.#generations().reduce((most, one) => Math.max(most, one), 0);
    this.#savedMs = options.clock.monotonicMs();
    this.#watch = options.clock.every(Math.min(LOOK_MS, options.everyMs), () => this.#look());
  }

  /**
   * Restores the saved snapshot into an empty index. Call it before workers from other sources are
   * added to the table, because saved blocks refer to target ids.
   */
  async restore(): Promise<RestoreOutcome> {
    const state = this.#readState();
    if (typeof state === "string") return { kind: "none", why: state };
    const { folder, index, clock, log } = this.#options;
    if (!(await index.load(join(folder, state.indexFile)))) {
      log("warn", "saved index snapshot damaged, rebuilding the index", { folder });
      return { kind: "none", why: "the saved index is damaged" };
    }
    const kept = new Set<TargetId>();
    for (const saved of state.sources) if (this.#restoreOne(saved)) kept.add(saved.target);
    for (let id = 0 as TargetId; id < state.targetsEnd; id++) if (!kept.has(id)) index.drop(id);
    this.stats.restoredSources = kept.size;
    return { kind: "restored", sources: kept.size, ageMs: clock.wallMs() - state.wallMs };
  }

  /** Saves a snapshot. Resolves false if writing failed; the previous snapshot is kept then. */
  save(): Promise<boolean> {
    this.#saving ??= this.#save().finally(() => {
      this.#saving = null;
    });
    return this.#saving;
  }

  /** Deletes the saved snapshot. */
  reset(): void {
    const { folder } = this.#options;
    rmSync(join(folder, STATE_FILE), { force: true });
    this.#removeBut(null);
  }

  /** Stops the periodic saves and saves a last snapshot. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#watch[Symbol.dispose]();
    await this.#saving;
    await this.save();
  }

  /**
   * Restores one worker and its sequence number. Returns false if the worker has another id in the
   * table, or its id belongs to another worker. The caller must then drop the blocks under that id.
   */
  #restoreOne(saved: SavedSource): boolean {
    const { table, ingest } = this.#options;
    const { worker, rank } = saved.source;
    const before = table.get(saved.target) ?? table.find(worker, rank);
    const isOther = before !== null && (before.worker !== worker || before.rank !== rank);
    if (isOther || (before !== null && before.id !== saved.target)) return false;
    try {
      if (before === null) table.put(saved.spec, saved.target);
    } catch {
      return false;
    }
    ingest.restore(saved);
    return true;
  }

  #look(): void {
    const { clock, everyMs, snapshotThreshold, ingest } = this.#options;
    const isTime = clock.monotonicMs() - this.#savedMs >= everyMs;
    const changes = ingest.counts.changes - this.#savedChanges;
    if (isTime || changes >= snapshotThreshold) void this.save();
  }

  async #save(): Promise<boolean> {
    const { folder, index, clock, ingest, log } = this.#options;
    this.#savedMs = clock.monotonicMs();
    this.#savedChanges = ingest.counts.changes;
    const indexFile = `index-${++this.#generation}`;
    // Read the sequence numbers before saving. Changes made during the save are applied a second
    // time after a restore, in order, which is harmless.
    const state = this.#stateOf(indexFile);
    try {
      await index.save(join(folder, indexFile));
      await replaceFile(join(folder, STATE_FILE), encodeState(state));
    } catch (thrown) {
      this.stats.failures++;
      log("warn", "saving the index snapshot failed", { folder, why: messageOf(thrown) });
      rmSync(join(folder, indexFile), { force: true });
      return false;
    }
    this.stats.saves++;
    this.#removeBut(indexFile);
    return true;
  }

  #stateOf(indexFile: string): SavedState {
    const { table, ingest, clock } = this.#options;
    const sources: SavedSource[] = [];
    for (const { isKnown, ...followed } of ingest.sources()) {
      const spec = table.get(followed.target);
      if (isKnown && spec !== null) sources.push({ ...followed, spec });
    }
    const targetsEnd = table.targets.reduce((end, { id }) => Math.max(end, id + 1), 0);
    return { indexFile, wallMs: Math.trunc(clock.wallMs()), targetsEnd, sources };
  }

  #readState(): SavedState | string {
    let text: string;
    try {
      text = readFileSync(join(this.#options.folder, STATE_FILE), "utf8");
    } catch {
      return "no snapshot was saved";
    }
    const state = readState(text);
    return state === null || !INDEX_FILE.test(state.indexFile)
      ? "the saved state is damaged"
      : state;
  }

  #generations(): number[] {
    const names = readdirSync(this.#options.folder).filter((name) => INDEX_FILE.test(name));
    return names.map((name) => Number.parseInt(name.slice("index-".length), 10));
  }

  #removeBut(kept: string | null): void {
    const { folder } = this.#options;
    for (const name of readdirSync(folder)) {
      if (INDEX_FILE.test(name) && name !== kept) rmSync(join(folder, name), { force: true });
    }
  }
}

/** Replaces a file atomically, also across a power failure. */
async function replaceFile(path: string, text: string): Promise<void> {
  const draft = `${path}.new`;
  const file = await open(draft, "w", 0o640);
  try {
    await file.writeFile(text);
    await file.sync();
  } finally {
    await file.close();
  }
  await rename(draft, path);
}

/** Restart point of one worker's events, with the worker's properties. */
interface SavedSource extends Omit<FollowedSource, "isKnown"> {
  readonly spec: WorkerSpec;
}

/** Contents of the state file, which describes one saved index file. */
export interface SavedState {
  /** Name of the index file in the snapshot folder. */
  readonly indexFile: string;
  readonly wallMs: number;
  /**
   * Upper bound, exclusive, of the target ids in the index file. Includes targets without a saved
   * source.
   */
  readonly targetsEnd: number;
  readonly sources: readonly SavedSource[];
}

const VERSION = 1;
const DEPTH_MAX = 8;
const ROLES: readonly WorkerRole[] = ["both", "prefill", "decode"];

/** Encodes the state as two lines: a checksum, then the JSON that it covers. */
export function encodeState(state: SavedState): string {
  const body = stringifyJson({
    version: VERSION,
    index: state.indexFile,
    saved_at: state.wallMs,
    targets_end: state.targetsEnd,
    sources: state.sources.map(({ source, target, sequence, isDeviceKnown, spaces, spec }) => ({
      ...{ worker: source.worker, rank: source.rank, incarnation: source.incarnation },
      device_known: isDeviceKnown,
      ...{ target, sequence, model: spec.model, role: spec.role, url: spec.url },
      ...{ total_blocks: spec.totalBlocks, batch_tokens_max: spec.batchTokensMax },
      spaces: spaces.map((space) => ({
        ...{ kind: space.kind, model: space.model, block_tokens: space.blockTokens },
        ...(space.kind === "blocks" ? { namespace: space.namespaceKey.toHex() } : {}),
        ...(space.kind === "blocks" && space.chain !== undefined ? { chain: space.chain } : {}),
      })),
    })),
  });
  return `${checksumOf(body)}\n${body}\n`;
}

/** Decodes a state file. Returns null if the text is damaged or of another version. */
export function readState(text: string): SavedState | null {
  const [checksum, body, rest] = text.split("\n");
  if (body === undefined || rest !== "" || checksum !== checksumOf(body)) return null;
  const fields = parseJson(body, DEPTH_MAX) as Fields;
  if (fields.version !== VERSION || !Array.isArray(fields.sources)) return null;
  const sources = fields.sources.map((source) => sourceIn(source as Fields));
  const isWhole = typeof fields.index === "string" && typeof fields.saved_at === "number";
  if (!isWhole || sources.includes(null)) return null;
  return {
    indexFile: fields.index as string,
    wallMs: fields.saved_at as number,
    targetsEnd: Number(fields.targets_end),
    sources: sources as SavedSource[],
  };
}

type Fields = { readonly [name: string]: Json | undefined };

function sourceIn(fields: Fields): SavedSource | null {
  const { worker, rank, incarnation, target, sequence, model, role } = fields;
  const spaces = Array.isArray(fields.spaces) ? fields.spaces : [];
  if (typeof worker !== "string" || !isWorkerId(worker) || typeof model !== "string") return null;
  const read = spaces.map((space) => spaceIn(space as Fields));
  const spec: WorkerSpec = {
    ...{ worker, rank: Number(rank), model, spaces: read },
    role: ROLES.find((one) => one === role) ?? "both",
    url: typeof fields.url === "string" ? fields.url : null,
    totalBlocks: numberOrNull(fields.total_blocks),
    batchTokensMax: numberOrNull(fields.batch_tokens_max),
  };
  const source = { worker, rank: spec.rank, incarnation: BigInt(incarnation as number) };
  const isDeviceKnown = fields.device_known !== false;
  const of = { target: Number(target) as TargetId, sequence: Number(sequence), isDeviceKnown };
  return { source, ...of, spaces: read, spec };
}

function spaceIn(fields: Fields): KeySpace {
  const { kind, model, block_tokens: blockTokens, namespace, chain } = fields;
  const of = { model: String(model), blockTokens: Number(blockTokens) };
  if (kind !== "blocks") return { kind: "tokens", ...of };
  const space = { kind, ...of, namespaceKey: Uint8Array.fromHex(String(namespace)) } as const;
  return typeof chain === "string" ? { ...space, chain } : space;
}

function numberOrNull(value: Json | undefined): number | null {
  return typeof value === "number" ? value : null;
}

function checksumOf(body: string): string {
  return Bun.hash.xxHash3(body).toString(16).padStart(16, "0");
}
