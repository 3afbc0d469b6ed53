import type { Clock } from "../../core/index.ts";
import type { BlockTable } from "../blocks/index.ts";
import type { HoldLedger } from "../index/index.ts";
import type { Hold } from "./hold.ts";
import type { HoldPart } from "./hold-blocks.ts";
import { blocksOf, rowOf } from "./hold-rows.ts";

export interface HoldRecordsParts {
  readonly table: BlockTable;
  readonly clock: Clock;
  readonly ledger: HoldLedger | null;
}

/**
 * Writes down what changed of holds, once a turn of the event loop however often it changed: the
 * parts that were touched, and nothing else. The first part lies in the row of the hold.
 */
export class HoldRecords {
  readonly #parts: HoldRecordsParts;
  readonly #changed = new Map<HoldPart, Hold>();
  /** One of them: blocks of a part change one after the other. */
  #latest: HoldPart | null = null;

  constructor(parts: HoldRecordsParts) {
    this.#parts = parts;
  }

  /** Its end has changed, or what is in its first part. */
  change(hold: Hold): void {
    this.changePart(hold, hold.nodes.parts[0]!);
  }

  changePart(hold: Hold, part: HoldPart): void {
    const { ledger } = this.#parts;
    if (part === this.#latest || ledger === null || !hold.isWhole || hold.ended) return;
    this.#latest = part;
    if (this.#changed.size === 0) ledger.beforeTurnEnds(() => this.#write());
    this.#changed.set(part, hold);
  }

  changeAll(hold: Hold): void {
    for (const part of hold.nodes.parts) this.changePart(hold, part);
  }

  /** Its end is now, and that is written before anything else becomes of it. */
  overdue(hold: Hold): void {
    const { ledger, table, clock } = this.#parts;
    if (ledger === null || !hold.isWhole || hold.ended) return;
    const [first] = hold.nodes.parts;
    ledger.putHold(rowOf(hold, blocksOf(first!.nodes, table), clock.bootId));
    ledger.seen(clock.bootId, clock.bootMs());
  }

  /** For good, with all its parts. */
  forget(id: number): void {
    this.#parts.ledger?.removeHold(id);
  }

  #write(): void {
    const { ledger, table, clock } = this.#parts;
    if (ledger === null) return;
    for (const [part, hold] of this.#changed) {
      if (hold.ended) continue;
      const blocks = blocksOf(part.nodes, table);
      if (part.number > 0) ledger.putPart({ hold: hold.id, part: part.number, blocks });
      else ledger.putHold(rowOf(hold, blocks, clock.bootId));
      if (hold.deadlineBootMs !== null) ledger.seen(clock.bootId, clock.bootMs());
    }
    this.#changed.clear();
    this.#latest = null;
  }
}
