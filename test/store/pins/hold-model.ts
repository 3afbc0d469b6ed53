import type { PinKind } from "../../../src/store/pins/index.ts";
import { BLOCK_BYTES } from "./hold-kit.ts";

/** A tree of prompts: block n is a child of PARENTS[n]; 0 means without a parent. */
export const PARENTS = [0, 0, 1, 2, 3, 2, 5, 1, 0, 8, 9, 8, 0, 12];
export const LAST = PARENTS.length - 1;

export function pathTo(n: number): number[] {
  const parent = PARENTS[n]!;
  return parent === 0 ? [n] : [...pathTo(parent), n];
}

export interface ModelBlock {
  ram: boolean;
  ssd: boolean;
  usedSeconds: number;
}

export interface ModelHold {
  readonly id: number;
  readonly kind: PinKind;
  readonly owner: string;
  readonly name: string | null;
  readonly priority: number | null;
  blocks: number[];
  endMs: number | null;
}

export interface Asked {
  readonly kind: PinKind;
  readonly owner: string;
  readonly name: string | null;
  readonly priority: number | null;
  readonly ttlMs: number | null;
  readonly blocks: readonly number[];
}

/** Holds as literally as they can be said: a list of them, gone through for each question. */
export class HoldModel {
  readonly blocks = new Map<number, ModelBlock>();
  holds: ModelHold[] = [];
  nowMs = 0;
  lastId = 0;
  hostBudget = Infinity;
  ownerBudget = Infinity;

  at(block: number): ModelHold[] {
    return this.holds.filter(({ blocks }) => blocks.includes(block));
  }

  /** Blocks that pins and leases keep, those above them included. */
  hardKept(): Set<number> {
    const hard = this.holds.filter(({ kind }) => kind !== "retain");
    return new Set(hard.flatMap(({ blocks }) => blocks.flatMap(pathTo)));
  }

  isKept(block: number): boolean {
    return this.holds.some(({ blocks }) => blocks.flatMap(pathTo).includes(block));
  }

  hostUsed(): number {
    return this.hardKept().size * BLOCK_BYTES;
  }

  ownerUsed(owner: string): number {
    const own = this.holds.filter((hold) => hold.kind !== "retain" && hold.owner === owner);
    return new Set(own.flatMap(({ blocks }) => blocks.flatMap(pathTo))).size * BLOCK_BYTES;
  }

  /** The outcome for each block; the hold where there was any. */
  add(asked: Asked): string[] {
    if (asked.kind === "lease" && this.holds.some(({ name }) => name === asked.name))
      return asked.blocks.map(() => "rejected");
    const { kind, owner, name, priority, ttlMs } = asked;
    const endMs = ttlMs === null ? null : this.nowMs + ttlMs;
    const id = ++this.lastId;
    const hold: ModelHold = { id, kind, owner, name, priority, blocks: [], endMs };
    this.holds.push(hold);
    const outcomes = this.join(hold, asked.blocks);
    this.#dropEmpty();
    return outcomes;
  }

  join(hold: ModelHold, blocks: readonly number[]): string[] {
    return blocks.map((block) => {
      if (hold.blocks.includes(block)) return "already";
      const [host, owner] = [this.hostUsed(), this.ownerUsed(hold.owner)];
      hold.blocks.push(block);
      const more = [this.hostUsed() - host, this.ownerUsed(hold.owner) - owner] as const;
      const isOver =
        (more[0] > 0 && host + more[0] > this.hostBudget) ||
        (more[1] > 0 && owner + more[1] > this.ownerBudget);
      if (isOver) hold.blocks.pop();
      return isOver ? "rejected" : "done";
    });
  }

  letGo(kind: PinKind, owner: string, blocks: readonly number[]): boolean[] {
    return blocks.map((block) => {
      const mine = this.at(block).filter((hold) => hold.kind === kind && hold.owner === owner);
      const end = ({ endMs }: ModelHold) => endMs ?? Infinity;
      const [first] = mine.sort((a, b) => (end(a) === end(b) ? b.id - a.id : end(a) - end(b)));
      if (first === undefined) return false;
      first.blocks = first.blocks.filter((other) => other !== block);
      this.#dropEmpty();
      return true;
    });
  }

  advance(ms: number): void {
    this.nowMs += ms;
    this.holds = this.holds.filter(({ endMs }) => endMs === null || endMs > this.nowMs);
  }

  /** The hold that goes, or null. */
  relieve(tier: "ram" | "ssd", isSoft: boolean): ModelHold | null {
    const stays = (block: number) => {
      const { ram, ssd } = this.blocks.get(block)!;
      return tier === "ssd" ? ssd : ram && !ssd;
    };
    const used = ({ blocks }: ModelHold) =>
      Math.max(...blocks.map((block) => this.blocks.get(block)!.usedSeconds));
    const rank = (hold: ModelHold) => [
      isSoft ? hold.priority! : 0,
      used(hold),
      -hold.blocks.length,
      hold.id,
    ];
    const [least] = this.holds
      .filter(({ kind }) => (kind === "retain") === isSoft)
      .filter(({ blocks }) => blocks.flatMap(pathTo).some(stays))
      .sort((a, b) => compare(rank(a), rank(b)));
    this.holds = this.holds.filter((hold) => hold !== least);
    return least ?? null;
  }

  #dropEmpty(): void {
    this.holds = this.holds.filter(({ blocks }) => blocks.length > 0);
  }
}

function compare(a: readonly number[], b: readonly number[]): number {
  const at = a.findIndex((value, i) => value !== b[i]);
  return at < 0 ? 0 : a[at]! - b[at]!;
}
