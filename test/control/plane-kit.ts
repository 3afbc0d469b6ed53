import {
  type AuditRecord,
  type BoundIssuer,
  type ControlLimits,
  type ControlPlane,
  createControlPlane,
  type Receipt,
  type Sender,
} from "../../src/control/index.ts";
import { stringifyJson } from "../../src/core/index.ts";
import { EventLog } from "../../src/observability/activity/index.ts";
import { createLogger } from "../../src/observability/index.ts";
import type { HoldLedger, LedgerContents } from "../../src/store/index/index.ts";
import { ManualClock } from "../support/index.ts";
import { FakeLifecycle } from "./fake-lifecycle.ts";

export const LIMITS: ControlLimits = {
  commandsPerSecond: 1_000,
  commandsBurst: 10_000,
  broadcast: ["Think", "Prune"],
};

export const OPERATOR: Sender = {
  via: "local",
  from: "test",
  name: "tester",
  role: "purge",
  broadcast: false,
};

export class PlaneKit {
  readonly clock = new ManualClock();
  readonly events = new EventLog(this.clock);
  readonly lifecycle = new FakeLifecycle();
  readonly lines: string[] = [];
  readonly audited: AuditRecord[] = [];
  limits = LIMITS;
  issuers: readonly BoundIssuer[] = [];
  readonly plane: ControlPlane;

  constructor(ledger: HoldLedger | null = null) {
    const { clock, events, lifecycle } = this;
    this.plane = createControlPlane({
      ...{ lifecycle, ledger, clock, events },
      log: createLogger({
        level: "debug",
        format: "json",
        write: (line) => this.lines.push(line),
        clock,
      }),
      workerId: "w1",
      incarnation: 0xffff_ffff_ffff_ffffn,
      limits: () => this.limits,
      issuers: () => this.issuers,
      audit: {
        ...{ dropped: 0, failure: null },
        write: (record) => void this.audited.push(record),
        [Symbol.asyncDispose]: async () => undefined,
      },
    });
  }

  send(command: object, sender: Partial<Sender> = {}, onProgress?: (receipt: Receipt) => void) {
    const body = new TextEncoder().encode(stringifyJson(command));
    const options = onProgress === undefined ? {} : { onProgress };
    return this.plane.submit(body, null, { ...OPERATOR, ...sender }, options);
  }

  /** The word of the refusal, or the status. */
  async word(command: object, sender: Partial<Sender> = {}): Promise<string> {
    const { status, reason } = await this.send(command, sender);
    return status === "rejected" ? reason!.split(":")[0]! : status;
  }
}

type Put = { readonly key: string; readonly row: unknown };

/**
 * A ledger that tells what would survive: what was put in a turn lasts together once `commit` was
 * called and `disk` says so.
 */
export class FakeLedger implements HoldLedger {
  readonly state = { failing: null, pending: 0, dropped: 0, setAside: null };
  readonly contents: LedgerContents;
  readonly mark = 1;
  readonly committed = new Map<string, unknown>();
  readonly commits: { readonly durable: boolean }[] = [];
  /** Commits are begun and never end. */
  isHanging = false;
  readonly #late: (() => void)[] = [];
  #pending: Put[] = [];

  constructor(contents: Partial<LedgerContents> = {}) {
    this.contents = {
      holds: [],
      parts: [],
      commands: [],
      issuers: [],
      lastSeen: null,
      ...contents,
    };
  }

  putHold(row: Parameters<HoldLedger["putHold"]>[0]): void {
    this.#pending.push({ key: `hold ${row.id}`, row });
  }
  putPart(row: Parameters<HoldLedger["putPart"]>[0]): void {
    this.#pending.push({ key: `part ${row.hold} ${row.part}`, row });
  }
  beforeTurnEnds(write: () => void): void {
    this.#late.push(write);
  }
  removeHold(id: number): void {
    this.#pending.push({ key: `hold ${id}`, row: null });
  }
  putCommand(row: Parameters<HoldLedger["putCommand"]>[0]): void {
    this.#pending.push({ key: `command ${row.issuer} ${row.id}`, row });
  }
  putIssuer(row: Parameters<HoldLedger["putIssuer"]>[0]): void {
    this.#pending.push({ key: `issuer ${row.issuer}`, row });
  }
  removeIssuer(issuer: string): void {
    this.#pending.push({ key: `issuer ${issuer}`, row: null });
  }
  seen(): void {}

  /** Rows that were put and are not committed. */
  get pending(): readonly string[] {
    return this.#pending.map(({ key }) => key);
  }

  async commit({ durable = true }: { readonly durable?: boolean } = {}): Promise<boolean> {
    this.commits.push({ durable });
    if (this.isHanging) return new Promise(() => undefined);
    for (const write of this.#late.splice(0)) write();
    const rows = this.#pending;
    this.#pending = [];
    await Promise.resolve();
    for (const { key, row } of rows) this.committed.set(key, row);
    return true;
  }

  async close(): Promise<boolean> {
    return this.commit();
  }
  async [Symbol.asyncDispose](): Promise<void> {}

  /** As it is opened after the process died now. */
  reopened(): FakeLedger {
    const rows = (kind: string) =>
      [...this.committed]
        .filter(([key, row]) => key.startsWith(`${kind} `) && row !== null)
        .map(([, row]) => row);
    return new FakeLedger({
      commands: rows("command") as LedgerContents["commands"],
      issuers: rows("issuer") as LedgerContents["issuers"],
    });
  }
}
