import { type HeldBy, yieldToLoop } from "../../core/index.ts";
import type { EventLog } from "../../observability/activity/index.ts";
import type { HoldInfo, HoldKind } from "./holds.ts";

/** Where warnings go; a logger is one. */
export interface HoldLog {
  warn(message: string, fields?: Record<string, string | number>): void;
}

interface Lost {
  readonly hold: HoldKind;
  readonly owner: string;
  readonly name: string | null;
  readonly why: string;
  blocks: number;
}

/** Says what becomes of holds without anybody's command: as events, and in the log. */
export class HoldNews {
  readonly #events: EventLog;
  readonly #log: HoldLog;
  /** Of this turn of the event loop. */
  readonly #lost = new Map<string, Lost>();

  constructor(events: EventLog, log: HoldLog) {
    this.#events = events;
    this.#log = log;
  }

  relieved({ kind: hold, owner, name, blocks, bytes }: HoldInfo, tier: string, why: string): void {
    const about = { blocks, bytes, tier: tier as "ram" | "ssd", why };
    this.#events.emit({ kind: "hold_relieved", hold, owner, name, ...about });
    const who = fieldsOf(hold, owner, name);
    this.#log.warn("a hold was ended because its blocks left no room", { ...who, ...about });
  }

  expired({ kind: hold, owner, name, blocks }: HoldInfo, purged: number): void {
    this.#events.emit({ kind: "hold_expired", hold, owner, name, blocks, purged });
  }

  notPurged({ owner, name }: HoldInfo, why: string): void {
    const fields = { owner, lease: name ?? "", why };
    this.#log.warn("the blocks of an expired lease could not be removed", fields);
  }

  /** A block that it holds is gone; said once for all of a turn that go for the same reason. */
  lost({ kind, owner = "", name = undefined }: HeldBy, why: string): void {
    if (kind !== "pin" && kind !== "retain" && kind !== "lease") return;
    const key = JSON.stringify([kind, owner, name, why]);
    const known = this.#lost.get(key);
    if (known !== undefined) {
      known.blocks++;
      return;
    }
    this.#lost.set(key, { hold: kind, owner, name: name ?? null, why, blocks: 1 });
    if (this.#lost.size === 1) void yieldToLoop().then(() => this.#tellLost());
  }

  #tellLost(): void {
    for (const { hold, owner, name, why, blocks } of this.#lost.values()) {
      this.#events.emit({ kind: "hold_lost", hold, owner, name, blocks, why });
      const fields = { ...fieldsOf(hold, owner, name), blocks, why };
      this.#log.warn("blocks under a hold are lost", fields);
    }
    this.#lost.clear();
  }

  /** Of a hold of a run before; `left`: blocks that are there. */
  missing(of: Pick<HoldInfo, "kind" | "owner" | "name">, lost: number, left: number): void {
    const { kind: hold, owner, name } = of;
    const why = "not there after the start";
    this.#events.emit({ kind: "hold_lost", hold, owner, name, blocks: lost, why });
    const fields = { ...fieldsOf(hold, owner, name), lost, left };
    this.#log.warn("blocks under a hold are not there after the start", fields);
  }
}

function fieldsOf(hold: HoldKind, owner: string, name: string | null): Record<string, string> {
  return { hold, owner, ...(name === null ? {} : { lease: name }) };
}
