import { BlockOutcome, type Clock, type NodeId } from "../../core/index.ts";
import type { TableView } from "../blocks/index.ts";
import { hexOfKey } from "../exchange/landings.ts";

/** Announced blocks of one engine. */
const ANNOUNCED_MAX = 65_536;
/** Words of a block's key. */
const KEY_WORDS = 8;

/** Blocks that one engine computes now and will store. */
export class EngineAnnouncements {
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
