import { mkdirSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { open, rename } from "node:fs/promises";
import { join } from "node:path";
import type { BusLog } from "../../bus/index.ts";
import { type Clock, messageOf } from "../../core/index.ts";
import type { ResidencyIntake } from "../intake/index.ts";
import type { PrefixIndex } from "../prefix-index.ts";
import type { TargetId, WorkerTable } from "../workers.ts";
import { encodeState, readState, type SavedSource, type SavedState } from "./saved-sources.ts";

export interface KeeperOptions {
  /** A folder of this router alone; made where it is missing. */
  readonly folder: string;
  readonly clock: Clock;
  readonly log: BusLog;
  readonly index: PrefixIndex;
  readonly table: WorkerTable;
  readonly intake: ResidencyIntake;
  readonly everyMs: number;
  /** Changes after which it is saved earlier than that. */
  readonly snapshotThreshold: number;
}

export interface KeeperStats {
  readonly saves: number;
  readonly failures: number;
  readonly restoredSources: number;
}

/** `none`: there is nothing to begin with, in words. */
export type RestoreOutcome =
  | { readonly kind: "restored"; readonly sources: number; readonly ageMs: number }
  | { readonly kind: "none"; readonly why: string };

const STATE_FILE = "state.json";
const INDEX_FILE = /^index-[0-9]+(?:\.new)?$/;
/** The threshold is looked at so often. */
const LOOK_MS = 1_000;

/**
 * Saves the picture now and then, with the numbers up to which it is true, so that a restart begins
 * with what it had and asks for what is missing. Files are replaced as a whole; a save that fails
 * leaves the one before.
 */
export class PictureKeeper implements AsyncDisposable {
  readonly #options: KeeperOptions;
  readonly #watch: Disposable;
  #saving: Promise<boolean> | null = null;
  #savedMs: number;
  #savedChanges = 0;
  #generation: number;
  #saves = 0;
  #failures = 0;
  #restoredSources = 0;
  #isOver = false;

  constructor(options: KeeperOptions) {
    this.#options = options;
    mkdirSync(options.folder, { recursive: true, mode: 0o750 });
    this.#generation = this.#generations().reduce((most, one) => Math.max(most, one), 0);
    this.#savedMs = options.clock.monotonicMs();
    this.#watch = options.clock.every(Math.min(LOOK_MS, options.everyMs), () => this.#look());
  }

  get stats(): KeeperStats {
    const [saves, failures] = [this.#saves, this.#failures];
    return { saves, failures, restoredSources: this.#restoredSources };
  }

  /** Into an empty index, and before workers of other origins are in the table. */
  async restore(): Promise<RestoreOutcome> {
    const state = this.#readState();
    if (typeof state === "string") return { kind: "none", why: state };
    const { folder, index, clock, log } = this.#options;
    if (!(await index.load(join(folder, state.indexFile)))) {
      log("warn", "the saved picture is damaged: it is built anew", { folder });
      return { kind: "none", why: "its index is damaged" };
    }
    const kept = new Set<TargetId>();
    for (const saved of state.sources) if (this.#restoreOne(saved)) kept.add(saved.target);
    for (let id = 0 as TargetId; id < state.targetsEnd; id++) if (!kept.has(id)) index.drop(id);
    this.#restoredSources = kept.size;
    return { kind: "restored", sources: kept.size, ageMs: clock.wallMs() - state.wallMs };
  }

  /** False: it could not be written; what was saved before stays. */
  save(): Promise<boolean> {
    this.#saving ??= this.#save().finally(() => {
      this.#saving = null;
    });
    return this.#saving;
  }

  /** Forgets what was saved. */
  reset(): void {
    const { folder } = this.#options;
    rmSync(join(folder, STATE_FILE), { force: true });
    this.#removeBut(null);
  }

  /** Saves once more. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#watch[Symbol.dispose]();
    await this.#saving;
    await this.save();
  }

  /** False: the table has it, or another, under another number: its blocks are of no use. */
  #restoreOne(saved: SavedSource): boolean {
    const { table, intake } = this.#options;
    const { worker, rank } = saved.source;
    const before = table.get(saved.target) ?? table.find(worker, rank);
    const isOther = before !== null && (before.worker !== worker || before.rank !== rank);
    if (isOther || (before !== null && before.id !== saved.target)) return false;
    try {
      if (before === null) table.put(saved.spec, saved.target);
    } catch {
      return false;
    }
    intake.restore(saved);
    return true;
  }

  #look(): void {
    const { clock, everyMs, snapshotThreshold, intake } = this.#options;
    const isTime = clock.monotonicMs() - this.#savedMs >= everyMs;
    const changes = intake.counts.changes - this.#savedChanges;
    if (isTime || changes >= snapshotThreshold) void this.save();
  }

  async #save(): Promise<boolean> {
    const { folder, index, clock, intake, log } = this.#options;
    this.#savedMs = clock.monotonicMs();
    this.#savedChanges = intake.counts.changes;
    const indexFile = `index-${++this.#generation}`;
    // Numbers first: changes that the index takes meanwhile may be applied once more, in order.
    const state = this.#stateOf(indexFile);
    try {
      await index.save(join(folder, indexFile));
      await replaceFile(join(folder, STATE_FILE), encodeState(state));
    } catch (thrown) {
      this.#failures++;
      log("warn", "the picture cannot be saved", { folder, why: messageOf(thrown) });
      rmSync(join(folder, indexFile), { force: true });
      return false;
    }
    this.#saves++;
    this.#removeBut(indexFile);
    return true;
  }

  #stateOf(indexFile: string): SavedState {
    const { table, intake, clock } = this.#options;
    const sources: SavedSource[] = [];
    for (const { isKnown, ...followed } of intake.sources()) {
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
      return "nothing was saved";
    }
    const state = readState(text);
    return state === null || !INDEX_FILE.test(state.indexFile) ? "it is damaged" : state;
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

/** At once whole or not at all, also when the power fails. */
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
