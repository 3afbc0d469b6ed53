import {
  BlockOutcome,
  type Clock,
  type NodeId,
  runInTurns,
  type TurnBudget,
  type TurnSource,
} from "../../core/index.ts";
import { type TableView, Tier } from "../blocks/index.ts";
import { hexOfKey } from "../exchange/landing.ts";
import type { TieredStore } from "../tiered-store.ts";
import { ClaimBook, type ClaimLimits, EngineClaims } from "./claims.ts";
import type { Lookup } from "./lookup.ts";

/** Connections that are one engine: a scheduler and its workers. */
export class EngineGroup {
  /** User of all its processes. */
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

/** One connection, and the engine that it is part of. */
export class EngineMember {
  readonly #engines: Engines;
  /** Of a connection that is of no engine: what it brings up while it looks up. */
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

  /** `id`: 16 bytes in hex. Members of the engine now; or why the connection cannot be one. */
  join(id: string, uid: number): number | "joined" | "foreign" {
    if (this.#group !== null || this.#isOver) return "joined";
    const group = this.#engines.groupOf(id, uid);
    if (group.uid !== uid) return "foreign";
    group.members.add(this);
    this.#group = group;
    return group.members.size;
  }

  /** A connection of the engine has acquired the block. */
  taken(node: NodeId): void {
    this.#group?.claims.taken(node);
  }

  /** The connection is over; with the last one goes everything that was kept for the engine. */
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

/** The engines of this host: what is kept in RAM for them, and what they compute. */
export class Engines {
  readonly store: TieredStore;
  readonly book: ClaimBook;
  readonly announcements: Announcements;
  readonly lookups: Lookups;
  readonly #groups = new Map<string, EngineGroup>();

  constructor(store: TieredStore, limits: ClaimLimits, turns: TurnBudget) {
    this.store = store;
    this.book = new ClaimBook(limits);
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

  /** A block came to a tier. Called in the middle of a change to the table. */
  came(node: NodeId, tier: Tier): void {
    if (tier !== Tier.ram) return;
    this.announcements.landed(this.store.table, node);
    this.lookups.arrived();
  }
}

/** Period in which waiting lookups are checked and send heartbeats if nothing comes. */
export const HEARTBEAT_MS = 25;

/** The lookups of one connection that wait for blocks. */
class Waiting {
  readonly lookups = new Set<Lookup>();
  readonly #source: TurnSource;
  /** Those to step next, with whether some time has passed since. */
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

  /** Each step is bounded; a lookup with more to look at comes again behind the others. */
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
  /** Monotonic ms at which a block last came to RAM while something waited. */
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
    // Last: it may be over when this returns.
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

  /** A block came to RAM: what waits is looked at behind the change that brought it. */
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

/** Announced blocks of one engine. */
const ANNOUNCED_MAX = 65_536;
/** Words of a block's key. */
const KEY_WORDS = 8;

/** Blocks that one engine computes now and will store. */
class EngineAnnouncements {
  readonly #all: Announcements;
  /** Key in hex → monotonic ms at which it ends. */
  readonly #ends = new Map<string, number>();
  /** Monotonic ms before which no announcement ends. */
  #firstEndMs = 0;
  #aliveUntilMs = Number.POSITIVE_INFINITY;

  constructor(all: Announcements) {
    this.#all = all;
  }

  /** `rejected`: as many blocks are announced as may be. Announcing again is renewing. */
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
   * A heartbeat: from now on announcements count for `ttlMs` after the last heartbeat, and at most
   * to their own end. Those of an engine that never sends one count to their own end.
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

  /** Monotonic ms at which the announcement ends; 0: there is none. */
  endOf(key: string): number {
    return this.#ends.get(key) ?? 0;
  }

  clear(): void {
    for (const key of [...this.#ends.keys()]) this.remove(key);
  }

  /** Whether that made room. All are looked at only if one of them may have ended. */
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

/** Blocks that engines of this host compute now: a lookup may wait for them. */
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

  /** Whether a live engine has announced the block whose key's words begin at block `i`. */
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

  /** The block has come to RAM: nothing has to be announced of it any more. */
  landed(table: TableView, node: NodeId): void {
    if (this.#byKey.size === 0) return;
    table.readKey(node, this.#key, 0);
    const key = hexOfKey(this.#key, 0);
    for (const engine of [...(this.#byKey.get(key) ?? [])]) engine.remove(key);
  }
}
