import { BLOCKS, idsOfPrompt, PROMPT_BLOCKS } from "../content.ts";
import type { Purge } from "../oracle.ts";
import type { Receipt } from "./agent-door.ts";
import { type Deed, type DeedRoom, hexesOf, hexOf, outcomesOf } from "./deed.ts";

const NOTHING: Purge = { ids: [], sentAt: 0 };

abstract class RemovalDeed {
  readonly keys: readonly string[] = [];
  readonly ids: readonly number[];
  protected readonly room: DeedRoom;
  protected purge = NOTHING;

  constructor(room: DeedRoom, ids: readonly number[]) {
    this.room = room;
    this.ids = ids;
  }

  mayBeSent(): boolean {
    return true;
  }

  sent(): void {
    this.purge = this.room.oracle.purgeSent(this.ids);
  }
}

/** From now on not on SSD, and so gone after a kill. */
export class MarkDeed extends RemovalDeed implements Deed {
  readonly what = "think mark";
  readonly body: Deed["body"];

  constructor(room: DeedRoom, ids: readonly number[]) {
    super(room, ids);
    this.body = { type: "Think", block_hashes: hexesOf(ids), transient: true };
  }

  override sent(): void {
    super.sent();
    this.room.model.markSent(this.ids, performance.now());
  }

  done(receipt: Receipt, _: unknown, acknowledged: boolean): void {
    if (!acknowledged) return;
    this.room.model.markAnswered(this.ids);
    const outcomes = outcomesOf(receipt);
    const isMarked = (at: number) => outcomes[at] === "done" || outcomes[at] === "already";
    this.room.oracle.markAnswered(this.purge, isMarked);
  }
}

export class ThinkPurgeDeed extends RemovalDeed implements Deed {
  readonly what = "think purge";
  readonly body: Deed["body"];

  constructor(room: DeedRoom, ids: readonly number[]) {
    super(room, ids);
    this.body = { type: "Think", block_hashes: hexesOf(ids), transient: false };
  }

  done(receipt: Receipt, _: unknown, acknowledged: boolean): void {
    const outcomes = outcomesOf(receipt);
    if (acknowledged) this.room.oracle.purgeAnswered(this.purge, (at) => outcomes[at] === "done");
  }
}

/**
 * All that follows a block of a prompt. A block says itself what it follows; one that follows a
 * block that is not there cannot be found any more after a start.
 */
export class PruneDeed extends RemovalDeed implements Deed {
  readonly what = "prune";
  readonly body: Deed["body"];
  readonly #reach: number;

  /** `reach`: how many of those that follow are found for sure, if they are there. */
  constructor(room: DeedRoom, after: number, reach: number) {
    const prompt = Math.floor(after / PROMPT_BLOCKS);
    super(
      room,
      idsOfPrompt(prompt).filter((id) => id > after),
    );
    this.body = { type: "Prune", after_block_hash: hexOf(after) };
    this.#reach = reach;
  }

  done(receipt: Receipt, _: unknown, acknowledged: boolean): void {
    const outcome = receipt.blocks[0]?.outcome ?? "";
    if (!acknowledged || !["done", "already", "held"].includes(outcome)) return;
    const held = new Set((receipt.held ?? []).map(({ block }) => block));
    const isGone = (at: number) => at < this.#reach && !held.has(hexOf(this.ids[at]!));
    this.room.oracle.purgeAnswered(this.purge, isGone);
  }
}

/** Everything that nothing holds. Where engines are at work, what they use may stay unsaid. */
export class FlushDeed extends RemovalDeed implements Deed {
  readonly what = "flush";
  readonly body: Deed["body"] = { type: "Flush" };
  readonly #isQuiet: boolean;

  constructor(room: DeedRoom, isQuiet: boolean) {
    super(
      room,
      Array.from({ length: BLOCKS }, (_, id) => id),
    );
    this.#isQuiet = isQuiet;
  }

  done(receipt: Receipt, _: unknown, acknowledged: boolean): void {
    const { reason, counts } = receipt;
    if (!acknowledged || !this.#isQuiet || reason !== undefined || counts.deferred !== 0) return;
    const held = new Set((receipt.held ?? []).map(({ block }) => block));
    this.room.oracle.purgeAnswered(this.purge, (at) => !held.has(hexOf(this.ids[at]!)));
  }
}

/** Changes nothing that must be. */
export class WarmDeed extends RemovalDeed implements Deed {
  readonly what = "warm";
  readonly body: Deed["body"];

  constructor(room: DeedRoom, ids: readonly number[]) {
    super(room, []);
    this.body = { type: "Warm", block_keys: hexesOf(ids), target_tier: "CPU_TIER1" };
  }

  done(): void {}
}
