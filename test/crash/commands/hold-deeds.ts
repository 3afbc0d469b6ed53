import type { Receipt } from "./agent-door.ts";
import { type Deed, type DeedRoom, hexesOf, isChanged, later, outcomesOf } from "./deed.ts";
import { GRACE_MS, type Span } from "./hold-model.ts";

/** A hold that ends sooner may end while a command on it is on its way: not to be told apart. */
const CLEAR_MS = 2_500;

abstract class HoldDeed {
  readonly ids: readonly number[];
  readonly owner: string;
  protected readonly room: DeedRoom;

  constructor(room: DeedRoom, owner: string, ids: readonly number[]) {
    this.room = room;
    this.owner = owner;
    this.ids = ids;
  }

  /** Blocks that the command holds now, and whether they stay whatever happens. */
  protected heldOf(receipt: Receipt, at: Span, acknowledged: boolean): Map<number, boolean> {
    const held = new Map<number, boolean>();
    for (const [i, outcome] of outcomesOf(receipt).entries()) {
      const id = this.ids[i]!;
      if (!isChanged(outcome)) continue;
      const isSafe = acknowledged && outcome === "done";
      held.set(id, isSafe && this.room.model.isUnmarked(id, at.lo));
    }
    return held;
  }

  protected isClear(key: string, nowMs: number): boolean {
    const ends = this.room.model.timed(key)?.ends ?? null;
    return ends === null || ends.lo - nowMs > CLEAR_MS;
  }
}

export class PinDeed extends HoldDeed implements Deed {
  readonly what = "pin";
  readonly keys: readonly string[];
  readonly body: Deed["body"];
  readonly #ttlMs: number | null;

  constructor(room: DeedRoom, owner: string, ids: readonly number[], ttlMs: number | null) {
    super(room, owner, ids);
    this.#ttlMs = ttlMs;
    this.keys = [`pin ${owner}`];
    const ttl = ttlMs === null ? {} : { ttl_seconds: ttlMs / 1_000 };
    this.body = { type: "Cache", block_hashes: hexesOf(ids), pin: true, owner, ...ttl };
  }

  mayBeSent(): boolean {
    return true;
  }

  done(receipt: Receipt, at: Span, acknowledged: boolean): void {
    const ends = this.#ttlMs === null ? null : later(at, this.#ttlMs);
    const blocks = this.heldOf(receipt, at, acknowledged);
    this.room.model.add({ kind: "pin", owner: this.owner, name: null, ends, blocks });
  }
}

export class UnpinDeed extends HoldDeed implements Deed {
  readonly what = "unpin";
  readonly keys: readonly string[];
  readonly body: Deed["body"];

  constructor(room: DeedRoom, owner: string, ids: readonly number[]) {
    super(room, owner, ids);
    this.keys = [`pin ${owner}`];
    this.body = { type: "Cache", block_hashes: hexesOf(ids), pin: false, owner };
  }

  mayBeSent(nowMs: number): boolean {
    return this.isClear(this.keys[0]!, nowMs);
  }

  /** Exactly one of the owner's pins goes from each block that has any. */
  done(receipt: Receipt): void {
    const { model, complain } = this.room;
    const key = this.keys[0]!;
    for (const [i, outcome] of outcomesOf(receipt).entries()) {
      const id = this.ids[i]!;
      const before = model.countOf(key, id);
      if (isChanged(outcome)) {
        if (!model.letGo(key, id)) complain(`block ${id} had a ${key} too many`);
      } else if (outcome === "already" && before > 0) {
        complain(`block ${id} has lost ${before} of ${key}`);
      }
    }
  }
}

export class RetainDeed extends HoldDeed implements Deed {
  readonly what: string;
  readonly keys: readonly string[];
  readonly body: Deed["body"];
  readonly #priority: number;

  /** Priority 0 takes it back. */
  constructor(room: DeedRoom, owner: string, ids: readonly number[], priority: number) {
    super(room, owner, ids);
    this.#priority = priority;
    this.what = priority === 0 ? "retain 0" : "retain";
    this.keys = [`retain ${owner}`];
    this.body = { type: "Cache", block_hashes: hexesOf(ids), retain: priority, owner };
  }

  mayBeSent(): boolean {
    return true;
  }

  /** What the owner said last counts. */
  done(receipt: Receipt, at: Span): void {
    const { model, complain, softMayGo } = this.room;
    const key = this.keys[0]!;
    for (const [i, outcome] of outcomesOf(receipt).entries()) {
      if (outcome === "missing") continue;
      const had = model.letGo(key, this.ids[i]!);
      const told = this.#priority > 0 || isChanged(outcome);
      if (had === told || this.#priority > 0 || softMayGo) continue;
      complain(`block ${this.ids[i]} ${had ? "has lost its" : "had a"} ${key}`);
    }
    if (this.#priority === 0) return;
    const blocks = this.heldOf(receipt, at, false);
    model.add({ kind: "retain", owner: this.owner, name: null, ends: null, blocks });
  }
}

export class PauseDeed extends HoldDeed implements Deed {
  readonly what = "pause";
  readonly keys: readonly string[];
  readonly body: Deed["body"];
  readonly #lease: string;
  readonly #ttlMs: number;

  constructor(
    room: DeedRoom,
    { owner, lease, ttlMs }: { owner: string; lease: string; ttlMs: number },
    ids: readonly number[],
  ) {
    super(room, owner, ids);
    this.#lease = lease;
    this.#ttlMs = ttlMs;
    this.keys = [`lease ${lease}`];
    const terms = { ttl_seconds: ttlMs / 1_000, lease_id: lease };
    this.body = { type: "Pause", block_hashes: hexesOf(ids), owner, ...terms };
  }

  mayBeSent(nowMs: number): boolean {
    return this.isClear(this.keys[0]!, nowMs);
  }

  done(receipt: Receipt, at: Span, acknowledged: boolean): void {
    const { model } = this.room;
    const had = model.lease(this.#lease);
    const blocks = this.heldOf(receipt, at, acknowledged);
    const ends = later(at, this.#ttlMs);
    if (had === null) {
      model.add({ kind: "lease", owner: this.owner, name: this.#lease, ends, blocks });
      return;
    }
    for (const [id, isSafe] of blocks) had.blocks.set(id, isSafe || had.blocks.get(id) === true);
    const isRenewed = blocks.size > 0 || receipt.ttl_seconds !== undefined;
    if (isRenewed) had.ends = ends;
    else if (!acknowledged) had.ends = { lo: Math.min(had.ends!.lo, ends.lo), hi: ends.hi };
  }
}

abstract class LeaseDeed {
  readonly keys: readonly string[];
  protected readonly room: DeedRoom;
  protected readonly lease: string;

  constructor(room: DeedRoom, lease: string) {
    this.room = room;
    this.lease = lease;
    this.keys = [`lease ${lease}`];
  }

  mayBeSent(): boolean {
    return true;
  }

  /** The agent says that there is none. */
  protected missing(at: Span): void {
    const { model, complain } = this.room;
    const hold = model.lease(this.lease);
    if (hold === null) return;
    const isPromised = [...hold.blocks.values()].includes(true);
    if (isPromised && hold.ends!.lo - GRACE_MS > at.hi) {
      const left = Math.round(hold.ends!.lo - at.hi);
      complain(`lease ${this.lease} is missing ${left} ms before its end`);
    }
    model.end(hold);
  }
}

export class RenewDeed extends LeaseDeed implements Deed {
  readonly what = "renew";
  readonly body: Deed["body"];
  readonly #ttlMs: number;

  constructor(room: DeedRoom, lease: string, ttlMs: number) {
    super(room, lease);
    this.#ttlMs = ttlMs;
    this.body = { type: "RenewLease", lease_id: lease, new_ttl_seconds: ttlMs / 1_000 };
  }

  done({ counts }: Receipt, at: Span): void {
    const { model, complain } = this.room;
    const hold = model.lease(this.lease);
    if ((counts.missing ?? 0) > 0) this.missing(at);
    else if (hold === null) complain(`lease ${this.lease} is over and was renewed`);
    else hold.ends = later(at, this.#ttlMs);
  }
}

export class RevokeDeed extends LeaseDeed implements Deed {
  readonly what = "revoke";
  readonly body: Deed["body"];
  #purge: ReturnType<DeedRoom["oracle"]["purgeSent"]> | null = null;

  constructor(room: DeedRoom, lease: string) {
    super(room, lease);
    this.body = { type: "RevokeLease", lease_id: lease };
  }

  sent(): void {
    const hold = this.room.model.lease(this.lease);
    this.#purge = this.room.oracle.purgeSent([...(hold?.blocks.keys() ?? [])]);
  }

  /** Blocks go while the ledger is told that the lease is over: either may come first. */
  cutOff(isHeld: (key: string) => boolean): void {
    const hold = this.room.model.lease(this.lease);
    if (hold === null) return;
    for (const id of hold.blocks.keys()) hold.blocks.set(id, false);
    if (!isHeld(this.keys[0]!)) this.room.model.end(hold);
  }

  done({ counts, status }: Receipt, at: Span, acknowledged: boolean): void {
    const { model, oracle, complain } = this.room;
    const hold = model.lease(this.lease);
    const { done = 0, missing = 0 } = counts;
    const others = Object.values(counts).reduce((sum, count) => sum + count, 0) - done - missing;
    if (done + others === 0) {
      this.missing(at);
      return;
    }
    if (hold === null) {
      complain(`lease ${this.lease} is over and was revoked`);
      return;
    }
    const isAllGone = acknowledged && status === "ok" && done === hold.blocks.size;
    if (this.#purge !== null) oracle.purgeAnswered(this.#purge, () => isAllGone);
    model.end(hold);
  }
}
