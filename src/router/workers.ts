import { assert, type Brand, equalBytes, HearthError, type WorkerId } from "../core/index.ts";
import type { KeySpace } from "../observability/activity/index.ts";

/**
 * A target of routing: one data parallel rank of one worker, as a small number that tables are
 * indexed by. A number is used again only after all tables have forgotten it.
 */
export type TargetId = Brand<number, "TargetId">;

/** What a worker is for; `both` serves whole requests. */
export type WorkerRole = "both" | "prefill" | "decode";

/** What is known of a worker, from the configuration, from whoever registered it, or by events. */
export interface WorkerSpec {
  readonly worker: WorkerId;
  readonly rank: number;
  readonly model: string;
  readonly role: WorkerRole;
  /** Where its OpenAI-compatible API listens; null: requests are not sent to it by us. */
  readonly url: string | null;
  /** KV blocks of `blockTokens` that its GPU holds; null: not known, never busy by blocks. */
  readonly totalBlocks: number | null;
  /** Tokens of one step at most; null: not known. */
  readonly batchTokensMax: number | null;
  readonly spaces: readonly KeySpace[];
}

/**
 * `live`: it may be chosen. `stale`: nothing was heard of it for too long; it is chosen only where
 * nothing else is left. `draining`: it takes no new requests. `gone`: to be forgotten.
 */
export type WorkerState = "live" | "stale" | "draining" | "gone";

export interface Target extends WorkerSpec {
  readonly id: TargetId;
  readonly state: WorkerState;
  /** Whether what it holds is known: events come, without a gap; or it is predicted. */
  readonly isKnown: boolean;
}

export type WorkerNews =
  | { readonly kind: "joined" | "changed" | "left"; readonly target: Target }
  | { readonly kind: "state"; readonly target: Target; readonly before: WorkerState };

/**
 * Every worker there is. Promises: a target keeps its number while it is known; `left` is told
 * once, after which its number may be given to another; lists are in the order of numbers.
 */
export interface WorkerTable {
  readonly targets: readonly Target[];
  get(id: TargetId): Target | null;
  find(worker: WorkerId, rank: number): Target | null;
  /**
   * Adds it or changes what is known of it. A new one gets the number `wanted` where that is free:
   * a picture that was saved goes by numbers. Throws ROUTER_FULL where there are too many.
   */
  put(spec: WorkerSpec, wanted?: TargetId): Target;
  setState(id: TargetId, state: WorkerState): void;
  setKnown(id: TargetId, isKnown: boolean): void;
  remove(id: TargetId): void;
  listen(listener: (news: WorkerNews) => void): Disposable;
}

/** Numbers of targets are 16 bits wide in what the index answers. */
const TARGETS_MAX = 65_535;

export interface WorkerTableOptions {
  /** Targets at once; 4,096 where left out. */
  readonly targetsMax?: number;
}

/** An empty table. Targets in it are never changed, only replaced. */
export function createWorkerTable(options: WorkerTableOptions = {}): WorkerTable {
  return new Table(Math.min(options.targetsMax ?? 4_096, TARGETS_MAX));
}

class Table implements WorkerTable {
  readonly #max: number;
  readonly #byId: (Target | null)[] = [];
  readonly #byName = new Map<string, Target>();
  readonly #listeners = new Set<(news: WorkerNews) => void>();
  /** Of those that left, the earliest first: a number rests as long as it can. */
  readonly #freeIds: number[] = [];
  #targets: readonly Target[] | null = [];

  constructor(max: number) {
    this.#max = max;
  }

  get targets(): readonly Target[] {
    this.#targets ??= this.#byId.filter((target) => target !== null);
    return this.#targets;
  }

  get(id: TargetId): Target | null {
    return this.#byId[id] ?? null;
  }

  find(worker: WorkerId, rank: number): Target | null {
    return this.#byName.get(nameOf(worker, rank)) ?? null;
  }

  put(spec: WorkerSpec, wanted?: TargetId): Target {
    const known = this.find(spec.worker, spec.rank);
    if (known === null) {
      const id = this.#takeId(wanted);
      const target = targetOf(spec, id, "live", false);
      this.#set(target);
      this.#tell({ kind: "joined", target });
      return target;
    }
    if (isSame(spec, known)) return known;
    const target = targetOf(spec, known.id, known.state, known.isKnown);
    this.#set(target);
    this.#tell({ kind: "changed", target });
    return target;
  }

  setState(id: TargetId, state: WorkerState): void {
    const before = this.get(id);
    if (before === null || before.state === state) return;
    const target = Object.freeze({ ...before, state });
    this.#set(target);
    this.#tell({ kind: "state", target, before: before.state });
  }

  setKnown(id: TargetId, isKnown: boolean): void {
    const before = this.get(id);
    if (before === null || before.isKnown === isKnown) return;
    const target = Object.freeze({ ...before, isKnown });
    this.#set(target);
    this.#tell({ kind: "changed", target });
  }

  remove(id: TargetId): void {
    const target = this.get(id);
    if (target === null) return;
    this.#byId[id] = null;
    this.#byName.delete(nameOf(target.worker, target.rank));
    this.#targets = null;
    this.#tell({ kind: "left", target: Object.freeze({ ...target, state: "gone" as const }) });
    this.#freeIds.push(id);
  }

  listen(listener: (news: WorkerNews) => void): Disposable {
    this.#listeners.add(listener);
    return { [Symbol.dispose]: () => this.#listeners.delete(listener) };
  }

  #takeId(wanted: TargetId | undefined): TargetId {
    if (this.#byName.size >= this.#max) {
      throw new HearthError("ROUTER_FULL", `the router knows ${this.#max} workers already`);
    }
    if (wanted !== undefined && wanted < this.#max) this.#makeId(wanted);
    const at = wanted === undefined ? -1 : this.#freeIds.indexOf(wanted);
    const free = this.#freeIds.splice(Math.max(at, 0), 1)[0];
    return (free ?? this.#byId.push(null) - 1) as TargetId;
  }

  #makeId(id: TargetId): void {
    assert(Number.isInteger(id) && id >= 0, "a number of a target");
    while (this.#byId.length <= id) this.#freeIds.push(this.#byId.push(null) - 1);
  }

  #set(target: Target): void {
    this.#byId[target.id] = target;
    this.#byName.set(nameOf(target.worker, target.rank), target);
    this.#targets = null;
  }

  #tell(news: WorkerNews): void {
    for (const listener of this.#listeners) listener(news);
  }
}

function targetOf(spec: WorkerSpec, id: TargetId, state: WorkerState, isKnown: boolean): Target {
  const { worker, rank, model, role, url, totalBlocks, batchTokensMax, spaces } = spec;
  const frozen = { worker, rank, model, role, url, totalBlocks, batchTokensMax, spaces };
  return Object.freeze({ ...frozen, id, state, isKnown });
}

/** Workers say again and again what they are; nobody need hear of it twice. */
function isSame(spec: WorkerSpec, known: Target): boolean {
  const { model, role, url, totalBlocks, batchTokensMax, spaces } = spec;
  const isPlainSame =
    model === known.model &&
    role === known.role &&
    url === known.url &&
    totalBlocks === known.totalBlocks &&
    batchTokensMax === known.batchTokensMax &&
    spaces.length === known.spaces.length;
  return isPlainSame && spaces.every((space, at) => isSameSpace(space, known.spaces[at]!));
}

function isSameSpace(a: KeySpace, b: KeySpace): boolean {
  if (a.model !== b.model || a.blockTokens !== b.blockTokens || a.kind !== b.kind) return false;
  if (a.kind === "tokens" || b.kind === "tokens") return true;
  return a.chain === b.chain && equalBytes(a.namespaceKey, b.namespaceKey);
}

/** A worker id has no blank. */
function nameOf(worker: WorkerId, rank: number): string {
  return `${worker} ${rank}`;
}
