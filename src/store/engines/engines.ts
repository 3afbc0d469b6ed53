import {
  BlockOutcome,
  type Clock,
  type NodeId,
  runInTurns,
  type TurnBudget,
  type TurnSource,
} from "../../core/index.ts";
import { type TableView, Tier } from "../blocks/index.ts";
import { hexOfKey } from "../exchange/incoming-blocks.ts";
import type { TieredStore } from "../tiered-store.ts";
import { type ClaimLimits, ClaimTable, EngineClaims } from "./claims.ts";
import type { Lookup } from "./lookup.ts";

/** The connections of one engine: those of its scheduler and its workers. */
class EngineGroup {
  /** User id of all processes of the engine. */
  readonly uid: number;
  readonly claims: EngineClaims;
  readonly announced: EngineAnnouncements;
  readonly members = new Set<EngineMember>();

  constructor(engines: Engines, uid: number) {
    this.uid = uid;
    this.claims = new EngineClaims(engines.store, engines.book);
    this.announced = engines.announcements.open();
  }
}

/** One connection, and the engine to which it belongs. */
export class EngineMember {
  readonly #engines: Engines;
  /** Reservations of this connection while it belongs to no engine. */
  readonly #own: EngineClaims;
  #group: EngineGroup | null = null;
  #isOver = false;

  constructor(engines: Engines) {
    this.#engines = engines;
    this.#own = new EngineClaims(engines.store, engines.book);
  }

  get group(): EngineGroup | null {
    return this.#group;
  }

  get claims(): EngineClaims {
    return this.#group?.claims ?? this.#own;
  }

  /**
   * Makes the connection a member of engine `id` (16 bytes in hex). Returns the number of members,
   * `joined` if the connection has joined an engine already or is closed, or `foreign` if the
   * engine belongs to another user.
   */
  join(id: string, uid: number): number | "joined" | "foreign" {
    if (this.#group !== null || this.#isOver) return "joined";
    const group = this.#engines.groupOf(id, uid);
    if (group.uid !== uid) return "foreign";
    group.members.add(this);
    this.#group = group;
    return group.members.size;
  }

  /**
   * Reports that this connection has acquired the block, so that it counts for the engine's
   * reservations.
   */
  taken(node: NodeId): void {
    this.#group?.claims.taken(node);
  }

  /**
   * Removes the connection from its engine. Call when it closes. When the last member leaves, all
   * reservations of the engine are released.
   */
  leave(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#own.endAll();
    const group = this.#group;
    if (group === null) return;
    group.members.delete(this);
    if (group.members.size === 0) this.#engines.end(group);
  }
}

/**
 * The engines of this host: their RAM reservations, their announcements of blocks, and their
 * waiting lookups.
 */
export class Engines {
  readonly store: TieredStore;
  readonly book: ClaimTable;
  readonly announcements: Announcements;
  readonly lookups: Lookups;
  readonly #groups = new Map<string, EngineGroup>();

  constructor(store: TieredStore, limits: ClaimLimits, turns: TurnBudget) {
    this.store = store;
    this.book = new ClaimTable(limits);
    this.announcements = new Announcements(store.clock);
    this.lookups = new Lookups(store.clock, turns);
  }

  get size(): number {
    return this.#groups.size;
  }

  open(): EngineMember {
    return new EngineMember(this);
  }

  groupOf(id: string, uid: number): EngineGroup {
    const known = this.#groups.get(id);
    if (known !== undefined) return known;
    const group = new EngineGroup(this, uid);
    this.#groups.set(id, group);
    return group;
  }

  end(group: EngineGroup): void {
    for (const [id, known] of this.#groups) if (known === group) this.#groups.delete(id);
    group.claims.endAll();
    group.announced.clear();
  }

  /**
   * Reports that a block was stored on a tier. The block table calls this function in the middle of
   * a change, so it must not modify the table.
   */
  came(node: NodeId, tier: Tier): void {
    if (tier !== Tier.ram) return;
    this.announcements.landed(this.store.table, node);
    this.lookups.arrived();
  }
}

/**
 * Milliseconds between checks of waiting lookups. A lookup for which no block has arrived sends a
 * heartbeat after this time.
 */
export const HEARTBEAT_MS = 25;

/** The lookups of one connection that wait for blocks. */
class Waiting {
  readonly lookups = new Set<Lookup>();
  readonly #source: TurnSource;
  /**
   * Lookups that will run their next step. The value is true if the heartbeat period has passed.
   */
  readonly #due = new Map<Lookup, boolean>();
  #isStepping = false;

  constructor(source: TurnSource) {
    this.#source = source;
  }

  due(lookup: Lookup, isTick: boolean): void {
    this.#due.set(lookup, isTick || this.#due.get(lookup) === true);
    if (this.#isStepping) return;
    this.#isStepping = true;
    void runInTurns(this.#source, this.#steps());
  }

  /**
   * Runs one step of each due lookup. Steps are bounded; a lookup with more work is queued again
   * after the others.
   */
  *#steps(): Generator<void, void> {
    for (const [lookup, isTick] of this.#due) {
      this.#due.delete(lookup);
      lookup.step(isTick);
      if (!lookup.isOver && lookup.hasMore) this.#due.set(lookup, false);
      yield;
    }
    this.#isStepping = false;
  }
}

/** The lookups of all connections that wait for blocks. */
class Lookups {
  readonly #clock: Clock;
  readonly #turns: TurnBudget;
  readonly #waiting = new Map<EngineMember, Waiting>();
  #size = 0;
  #timer: Disposable | null = null;
  #isDue = false;
  /** Time (monotonic ms) at which a block last arrived in RAM while a lookup was waiting. */
  lastArrivalMs = 0;

  constructor(clock: Clock, turns: TurnBudget) {
    this.#clock = clock;
    this.#turns = turns;
  }

  get size(): number {
    return this.#size;
  }

  add(lookup: Lookup): void {
    const { member } = lookup;
    let waiting = this.#waiting.get(member);
    if (waiting === undefined) {
      waiting = new Waiting(this.#turns.source());
      this.#waiting.set(member, waiting);
    }
    waiting.lookups.add(lookup);
    this.#size++;
    this.#timer ??= this.#clock.every(HEARTBEAT_MS, () => this.#stepAll(true));
    // Must be the last statement: a step may finish the lookup.
    if (lookup.hasMore) waiting.due(lookup, false);
  }

  remove(lookup: Lookup): void {
    const waiting = this.#waiting.get(lookup.member);
    if (waiting?.lookups.delete(lookup) !== true) return;
    this.#size--;
    if (waiting.lookups.size === 0) this.#waiting.delete(lookup.member);
    if (this.#size > 0) return;
    this.#timer?.[Symbol.dispose]();
    this.#timer = null;
  }

  /**
   * Reports that a block arrived in RAM. Schedules a step of all waiting lookups after the current
   * table change.
   */
  arrived(): void {
    if (this.#size === 0) return;
    this.lastArrivalMs = this.#clock.monotonicMs();
    if (this.#isDue) return;
    this.#isDue = true;
    queueMicrotask(() => {
      this.#isDue = false;
      this.#stepAll(false);
    });
  }

  #stepAll(isTick: boolean): void {
    for (const waiting of [...this.#waiting.values()]) {
      for (const lookup of [...waiting.lookups]) waiting.due(lookup, isTick);
    }
  }
}

/** Maximum number of blocks that one engine may announce at a time. */
const ANNOUNCED_MAX = 65_536;
/** Number of 32-bit words of a block key. */
const KEY_WORDS = 8;

/** The blocks that one engine has announced: it is computing them and will store them. */
class EngineAnnouncements {
  readonly #all: Announcements;
  /** Expiry (monotonic ms) of each announcement, by block key in hex. */
  readonly #ends = new Map<string, number>();
  /** Time (monotonic ms) before which no announcement expires. */
  #firstEndMs = 0;
  #aliveUntilMs = Number.POSITIVE_INFINITY;

  constructor(all: Announcements) {
    this.#all = all;
  }

  /**
   * Announces a block, or renews its announcement for `ttlMs`. Returns `rejected` if the engine has
   * announced too many blocks.
   */
  add(keys: Uint32Array, i: number, ttlMs: number): BlockOutcome {
    const key = hexOfKey(keys, i * KEY_WORDS);
    if (!this.#ends.has(key) && this.#ends.size >= ANNOUNCED_MAX && !this.#dropEnded()) {
      return BlockOutcome.rejected;
    }
    const end = this.#all.clock.monotonicMs() + ttlMs;
    this.#ends.set(key, end);
    this.#firstEndMs = Math.min(this.#firstEndMs, end);
    this.#all.added(key, this);
    return BlockOutcome.ok;
  }

  /**
   * Records a heartbeat of the engine. After the first heartbeat, an announcement expires `ttlMs`
   * after the last heartbeat or at its own expiry, whichever is sooner. Without heartbeats only its
   * own expiry counts.
   */
  beat(ttlMs: number): void {
    this.#aliveUntilMs = this.#all.clock.monotonicMs() + ttlMs;
  }

  isAlive(nowMs: number): boolean {
    return nowMs < this.#aliveUntilMs;
  }

  withdraw(keys: Uint32Array, i: number): void {
    this.remove(hexOfKey(keys, i * KEY_WORDS));
  }

  remove(key: string): void {
    if (this.#ends.delete(key)) this.#all.removed(key, this);
  }

  /** Returns the expiry of the announcement (monotonic ms); 0 if there is none. */
  endOf(key: string): number {
    return this.#ends.get(key) ?? 0;
  }

  clear(): void {
    for (const key of [...this.#ends.keys()]) this.remove(key);
  }

  /**
   * Removes expired announcements. Returns whether the engine may announce another block. Scans
   * only if an announcement may have expired.
   */
  #dropEnded(): boolean {
    const now = this.#all.clock.monotonicMs();
    if (now < this.#firstEndMs) return false;
    this.#firstEndMs = Number.POSITIVE_INFINITY;
    for (const [key, end] of this.#ends) {
      if (end <= now) this.remove(key);
      else this.#firstEndMs = Math.min(this.#firstEndMs, end);
    }
    return this.#ends.size < ANNOUNCED_MAX;
  }
}

/**
 * Blocks that engines of this host have announced: they are computing them. A lookup may wait for
 * them.
 */
export class Announcements {
  readonly clock: Clock;
  readonly #byKey = new Map<string, Set<EngineAnnouncements>>();
  readonly #key = new Uint32Array(KEY_WORDS);

  constructor(clock: Clock) {
    this.clock = clock;
  }

  get size(): number {
    return this.#byKey.size;
  }

  open(): EngineAnnouncements {
    return new EngineAnnouncements(this);
  }

  /** Returns whether a live engine has announced block `i` of `keys`. */
  has(keys: Uint32Array, i: number): boolean {
    if (this.#byKey.size === 0) return false;
    const key = hexOfKey(keys, i * KEY_WORDS);
    const engines = this.#byKey.get(key);
    if (engines === undefined) return false;
    const now = this.clock.monotonicMs();
    for (const engine of [...engines]) {
      if (engine.endOf(key) <= now) engine.remove(key);
      else if (engine.isAlive(now)) return true;
    }
    return false;
  }

  added(key: string, engine: EngineAnnouncements): void {
    const engines = this.#byKey.get(key);
    if (engines === undefined) this.#byKey.set(key, new Set([engine]));
    else engines.add(engine);
  }

  removed(key: string, engine: EngineAnnouncements): void {
    const engines = this.#byKey.get(key)!;
    engines.delete(engine);
    if (engines.size === 0) this.#byKey.delete(key);
  }

  /** Removes the announcements of a block that has arrived in RAM. */
  landed(table: TableView, node: NodeId): void {
    if (this.#byKey.size === 0) return;
    table.readKey(node, this.#key, 0);
    const key = hexOfKey(this.#key, 0);
    for (const engine of [...(this.#byKey.get(key) ?? [])]) engine.remove(key);
  }
}
