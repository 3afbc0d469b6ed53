import { assert, type Brand, HearthError, type WorkerId } from "../core/index.ts";
import type { KeySpace } from "../observability/activity/index.ts";

/**
 * Number of a routing target, used as an array index. A target is one data-parallel rank of one
 * worker. A number is reused only after all tables have removed its previous target.
 */
export type TargetId = Brand<number, "TargetId">;

/** Phases that a worker serves. `both`: whole requests. */
export type WorkerRole = "both" | "prefill" | "decode";

/** Properties of a worker's rank, from the configuration, a registration or its events. */
export interface WorkerSpec {
  readonly worker: WorkerId;
  readonly rank: number;
  readonly model: string;
  readonly role: WorkerRole;
  /** Base URL of the worker's OpenAI-compatible API. Null: the proxy sends it no requests. */
  readonly url: string | null;
  /**
   * Capacity of the GPU's KV cache, in blocks of `blockTokens` tokens. Null: unknown; the worker
   * then has no block limit.
   */
  readonly totalBlocks: number | null;
  /** Maximum tokens that the engine processes in one step. Null: unknown. */
  readonly batchTokensMax: number | null;
  readonly spaces: readonly KeySpace[];
}

/**
 * `live`: may be chosen. `stale`: heartbeats are missing; may be chosen only if no live worker is
 * left. `draining`: takes no new requests. `gone`: will be removed.
 */
export type WorkerState = "live" | "stale" | "draining" | "gone";

export interface Target extends WorkerSpec {
  readonly id: TargetId;
  readonly state: WorkerState;
  /**
   * True if the router knows the worker's cached blocks: it received all events, or predicts the
   * blocks.
   */
  readonly isKnown: boolean;
}

export type WorkerEvent =
  | { readonly kind: "joined" | "changed" | "left"; readonly target: Target }
  | { readonly kind: "state"; readonly target: Target; readonly before: WorkerState };

/** Maximum targets: the index returns target ids as 16-bit numbers. */
const TARGETS_MAX = 65_535;

/**
 * Table of all known workers, one target per rank. A target keeps its id while it is known. `left`
 * is reported once; then the id may be reused. Lists are ordered by id. Targets are frozen: an
 * update replaces the object.
 */
export class WorkerTable {
  readonly #max: number;
  readonly #byId: (Target | null)[] = [];
  readonly #byName = new Map<string, Target>();
  readonly #listeners = new Set<(news: WorkerEvent) => void>();
  /**
   * Ids of removed targets. The id removed first is reused first, so each stays unused as long as
   * possible.
   */
  readonly #freeIds: number[] = [];
  #targets: readonly Target[] | null = [];

  /** `targetsMax`: maximum number of targets in the table. */
  constructor({ targetsMax = 4_096 }: { readonly targetsMax?: number } = {}) {
    this.#max = Math.min(targetsMax, TARGETS_MAX);
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

  /**
   * Adds or updates a worker's rank. A new one gets the id `wanted` if that id is free; saved
   * snapshots refer to ids. Throws ROUTER_FULL at the limit.
   */
  put(spec: WorkerSpec, wanted?: TargetId): Target {
    const known = this.find(spec.worker, spec.rank);
    if (known === null) {
      const id = this.#takeId(wanted);
      const target = targetOf(spec, id, "live", false);
      this.#set(target);
      this.#notify({ kind: "joined", target });
      return target;
    }
    if (isSame(spec, known)) return known;
    const target = targetOf(spec, known.id, known.state, known.isKnown);
    this.#set(target);
    this.#notify({ kind: "changed", target });
    return target;
  }

  setState(id: TargetId, state: WorkerState): void {
    const before = this.get(id);
    if (before === null || before.state === state) return;
    const target = Object.freeze({ ...before, state });
    this.#set(target);
    this.#notify({ kind: "state", target, before: before.state });
  }

  setKnown(id: TargetId, isKnown: boolean): void {
    const before = this.get(id);
    if (before === null || before.isKnown === isKnown) return;
    const target = Object.freeze({ ...before, isKnown });
    this.#set(target);
    this.#notify({ kind: "changed", target });
  }

  remove(id: TargetId): void {
    const target = this.get(id);
    if (target === null) return;
    this.#byId[id] = null;
    this.#byName.delete(nameOf(target.worker, target.rank));
    this.#targets = null;
    this.#notify({ kind: "left", target: Object.freeze({ ...target, state: "gone" as const }) });
    this.#freeIds.push(id);
  }

  listen(listener: (news: WorkerEvent) => void): Disposable {
    this.#listeners.add(listener);
    return { [Symbol.dispose]: () => this.#listeners.delete(listener) };
  }

  #takeId(wanted: TargetId | undefined): TargetId {
    if (this.#byName.size >= this.#max) {
      throw new HearthError("ROUTER_FULL", `the worker table is full: ${this.#max} workers`);
    }
    if (wanted !== undefined && wanted < this.#max) this.#makeId(wanted);
    const at = wanted === undefined ? -1 : this.#freeIds.indexOf(wanted);
    const free = this.#freeIds.splice(Math.max(at, 0), 1)[0];
    return (free ?? this.#byId.push(null) - 1) as TargetId;
  }

  #makeId(id: TargetId): void {
    assert(Number.isInteger(id) && id >= 0, "target ids are integers from 0");
    while (this.#byId.length <= id) this.#freeIds.push(this.#byId.push(null) - 1);
  }

  #set(target: Target): void {
    this.#byId[target.id] = target;
    this.#byName.set(nameOf(target.worker, target.rank), target);
    this.#targets = null;
  }

  #notify(news: WorkerEvent): void {
    for (const listener of this.#listeners) listener(news);
  }
}

function targetOf(spec: WorkerSpec, id: TargetId, state: WorkerState, isKnown: boolean): Target {
  const { worker, rank, model, role, url, totalBlocks, batchTokensMax, spaces } = spec;
  const frozen = { worker, rank, model, role, url, totalBlocks, batchTokensMax, spaces };
  return Object.freeze({ ...frozen, id, state, isKnown });
}

/**
 * Returns whether a spec equals the known one. Workers announce themselves periodically, and
 * listeners are called only for changes.
 */
function isSame(spec: WorkerSpec, known: Target): boolean {
  const plain = ["model", "role", "url", "totalBlocks", "batchTokensMax"] as const;
  return (
    plain.every((name) => spec[name] === known[name]) &&
    spec.spaces.length === known.spaces.length &&
    spec.spaces.every((space, at) => keySpaceName(space) === keySpaceName(known.spaces[at]))
  );
}

/** Returns a name that is equal for two key spaces only if they are equal. */
export function keySpaceName(space: KeySpace): string {
  const key = space.kind === "blocks" ? space.namespaceKey.toHex() : "";
  const chain = space.kind === "blocks" ? (space.chain ?? "") : "";
  return `${space.kind} ${space.blockTokens} ${key} ${space.model} ${chain}`;
}

/** Returns a unique name of a rank: worker ids contain no space. */
function nameOf(worker: WorkerId, rank: number): string {
  return `${worker} ${rank}`;
}
