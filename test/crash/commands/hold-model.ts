import type { PinKind } from "../../../src/store/pins/index.ts";

/** Between two moments of the test's monotonic clock, in milliseconds. */
export interface Span {
  readonly lo: number;
  readonly hi: number;
}

/** A pin, a soft pin or a lease as it must be, from what was acknowledged. */
export interface ModelHold {
  readonly kind: PinKind;
  readonly owner: string;
  /** Of a lease. */
  readonly name: string | null;
  /** When it ends by itself; null: never. */
  ends: Span | null;
  /** Its blocks; true where the agent said that the block stays here whatever happens. */
  readonly blocks: Map<number, boolean>;
}

/** Nothing may end earlier or later than this. */
export const GRACE_MS = 1_000;

/** Who a hold belongs to, as far as commands can tell: a lease by its name, others by owner. */
export function keyOf(kind: PinKind, owner: string, name: string | null): string {
  return kind === "lease" ? `lease ${name}` : `${kind} ${owner}`;
}

/** Counts of one block, where some holds may have ended meanwhile. */
export interface Counts {
  min: number;
  max: number;
  /** Who holds it, and whether that is sure. */
  readonly parties: Map<string, boolean>;
}

/**
 * What the agent's holds must be. Each owner has one pin with an end at most, and names of leases
 * and of such owners are never used again: so each hold that ends can be told from the others.
 */
export class HoldModel {
  readonly #holds = new Set<ModelHold>();
  /**
   * What holds had and was not there after the last start, though nobody had promised it. The
   * agent may hold it all the same: it went behind the start; or it is forgotten behind the start,
   * which a kill may forestall.
   */
  #lapsed: { readonly hold: ModelHold; readonly id: number }[] = [];
  /** Keys of holds with an end that are over. */
  readonly over = new Set<string>();
  /** When each block was last said to be transient, and such commands on their way. */
  readonly #marked = new Map<number, number>();
  readonly #marking = new Map<number, number>();
  /** Commands on their way, by the key of what they change; and how many there have been. */
  readonly #inFlight = new Map<string, number>();
  readonly #turns = new Map<string, number>();

  all(): ModelHold[] {
    return [...this.#holds];
  }

  /** The folders are empty. */
  clear(): void {
    this.#lapsed.length = 0;
    for (const hold of this.#holds) this.#end(hold);
  }

  /** The process that commands were on their way to is gone. */
  restarted(): void {
    this.#marking.clear();
    this.#inFlight.clear();
  }

  enter(keys: readonly string[]): void {
    for (const key of keys) {
      this.#inFlight.set(key, (this.#inFlight.get(key) ?? 0) + 1);
      this.#turns.set(key, this.turnOf(key) + 1);
    }
  }

  leave(keys: readonly string[]): void {
    for (const key of keys) this.#inFlight.set(key, (this.#inFlight.get(key) ?? 1) - 1);
  }

  isBusy(key: string): boolean {
    return (this.#inFlight.get(key) ?? 0) > 0;
  }

  /** Grows with each command that may change it. */
  turnOf(key: string): number {
    return this.#turns.get(key) ?? 0;
  }

  /** Says of a key whether no command has been on its way to it from now on. */
  unchangedSince(): (key: string) => boolean {
    const turns = new Map(this.#turns);
    const busy = new Set([...this.#inFlight.keys()].filter((key) => this.isBusy(key)));
    return (key) => !busy.has(key) && (turns.get(key) ?? 0) === this.turnOf(key);
  }

  #of(key: string): ModelHold[] {
    return this.all().filter(({ kind, owner, name }) => keyOf(kind, owner, name) === key);
  }

  /** The one hold of this key that has an end. */
  timed(key: string): ModelHold | null {
    return this.#of(key).find(({ ends }) => ends !== null) ?? null;
  }

  lease(name: string): ModelHold | null {
    return this.timed(`lease ${name}`);
  }

  /** Blocks under those of its holds that never end, each time counted. */
  lastingBlocks(key: string): number {
    const lasting = this.#of(key).filter(({ ends }) => ends === null);
    return lasting.reduce((sum, { blocks }) => sum + blocks.size, 0);
  }

  countOf(key: string, id: number): number {
    return this.#of(key).filter(({ blocks }) => blocks.has(id)).length;
  }

  add(hold: ModelHold): void {
    if (hold.blocks.size > 0) this.#holds.add(hold);
  }

  /** Lets go of the owner's hold on the block that ends first; false where there is none. */
  letGo(key: string, id: number): boolean {
    const holds = this.#of(key).filter(({ blocks }) => blocks.has(id));
    const first = holds.find(({ ends }) => ends !== null) ?? holds[0];
    if (first === undefined) return false;
    first.blocks.delete(id);
    if (first.blocks.size === 0) this.#end(first);
    return true;
  }

  /** It ended by itself, or was ended. */
  end(hold: ModelHold): void {
    this.#end(hold);
  }

  #end(hold: ModelHold): void {
    this.#holds.delete(hold);
    if (hold.ends !== null) this.over.add(keyOf(hold.kind, hold.owner, hold.name));
  }

  /** A block on which `done` says no more that it stays. */
  unsure(id: number): void {
    for (const { blocks } of this.#holds) if (blocks.has(id)) blocks.set(id, false);
  }

  /** A command that keeps blocks off SSD is on its way. */
  markSent(ids: readonly number[], atMs: number): void {
    for (const id of ids) {
      this.unsure(id);
      this.#marked.set(id, atMs);
      this.#marking.set(id, (this.#marking.get(id) ?? 0) + 1);
    }
  }

  markAnswered(ids: readonly number[]): void {
    for (const id of ids) this.#marking.set(id, (this.#marking.get(id) ?? 1) - 1);
  }

  /** Whether nobody has called the block transient since. */
  isUnmarked(id: number, sinceMs: number): boolean {
    return (this.#marking.get(id) ?? 0) === 0 && (this.#marked.get(id) ?? -1) < sinceMs;
  }

  /** Whether the block must be there: a command said `done`, and nothing has ended it. */
  isPromised(id: number, nowMs: number): boolean {
    for (const { kind, owner, name, ends, blocks } of this.#holds) {
      if (kind === "retain" || blocks.get(id) !== true) continue;
      if (ends !== null && nowMs > ends.lo - GRACE_MS) continue;
      if (!this.isBusy(keyOf(kind, owner, name))) return true;
    }
    return false;
  }

  /** What must be counted on a block; `isThere` says of a hold with an end whether it has ended. */
  countsOf(id: number, isThere: (hold: ModelHold) => boolean | null): Counts {
    const counts: Counts = { min: 0, max: 0, parties: new Map() };
    for (const hold of this.#holds) {
      if (!hold.blocks.has(id)) continue;
      const there = hold.ends === null ? true : isThere(hold);
      if (there === false) continue;
      if (there) counts.min++;
      counts.max++;
      const key = keyOf(hold.kind, hold.owner, hold.name);
      counts.parties.set(key, there === true || counts.parties.get(key) === true);
    }
    return counts;
  }

  /** Takes back what was lost and is there again; `isHeld` says by whom a block is held. */
  revive(isHeld: (id: number, key: string) => boolean): void {
    this.#lapsed = this.#lapsed.filter(({ hold, id }) => {
      const key = keyOf(hold.kind, hold.owner, hold.name);
      if (this.countOf(key, id) > 0 || !isHeld(id, key)) return true;
      hold.blocks.set(id, false);
      this.#holds.add(hold);
      this.over.delete(key);
      return false;
    });
  }

  /** Blocks that may be counted under the key besides those that must be. */
  lapsedBlocks(key: string): number {
    const keys = this.#lapsed.map(({ hold }) => keyOf(hold.kind, hold.owner, hold.name));
    return keys.filter((other) => other === key).length;
  }

  /**
   * After a start holds have what is there of their blocks, and are over where nothing is. Answers
   * blocks that should have been there.
   */
  restored(isResident: (id: number) => boolean, nowMs: number): number[] {
    const lost = new Set<number>();
    this.#lapsed = [];
    for (const hold of this.#holds) {
      for (const id of [...hold.blocks.keys()]) {
        if (isResident(id)) continue;
        if (this.isPromised(id, nowMs)) lost.add(id);
      }
    }
    for (const hold of this.#holds) {
      for (const id of [...hold.blocks.keys()]) {
        if (isResident(id)) continue;
        hold.blocks.delete(id);
        this.#lapsed.push({ hold, id });
      }
      if (hold.blocks.size === 0) this.#end(hold);
    }
    return [...lost];
  }
}
