import {
  type AuditRecord,
  type BoundIssuer,
  type ControlLimits,
  ControlPlane,
  type Receipt,
  type Sender,
} from "../../src/control/index.ts";
import {
  type BlockName,
  type BlockResult,
  type CommandOutcome,
  countOutcomes,
  stringifyJson,
} from "../../src/core/index.ts";
import { EventLog } from "../../src/observability/activity/index.ts";
import { createLogger } from "../../src/observability/index.ts";
import type { LedgerContents, RetentionLedger } from "../../src/store/index/index.ts";
import type {
  GpuSink,
  Grant,
  Lifecycle,
  LifecycleReport,
  OnProgress,
  Remember,
} from "../../src/store/index.ts";
import { ManualClock } from "../support/index.ts";

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

  constructor(ledger: RetentionLedger | null = null) {
    const { clock, events, lifecycle } = this;
    this.plane = new ControlPlane({
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

  /** The code of the refusal, or the status. */
  async word(command: object, sender: Partial<Sender> = {}): Promise<string> {
    const { status, reason } = await this.send(command, sender);
    return status === "rejected" ? reason!.split(":")[0]! : status;
  }
}

type Put = { readonly key: string; readonly row: unknown };

/**
 * A ledger that models persistence: writes of one turn survive together once `commit` was called
 * and `disk` confirms it.
 */
export class FakeLedger implements RetentionLedger {
  readonly state = { failing: null, pending: 0, dropped: 0, setAside: null };
  readonly contents: LedgerContents;
  readonly mark = 1;
  readonly committed = new Map<string, unknown>();
  readonly commits: { readonly durable: boolean }[] = [];
  /** Commits start and never end. */
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

  putHold(row: Parameters<RetentionLedger["putHold"]>[0]): void {
    this.#pending.push({ key: `hold ${row.id}`, row });
  }
  putPart(row: Parameters<RetentionLedger["putPart"]>[0]): void {
    this.#pending.push({ key: `part ${row.hold} ${row.part}`, row });
  }
  beforeTurnEnds(write: () => void): void {
    this.#late.push(write);
  }
  removeHold(id: number): void {
    this.#pending.push({ key: `hold ${id}`, row: null });
  }
  putCommand(row: Parameters<RetentionLedger["putCommand"]>[0]): void {
    this.#pending.push({ key: `command ${row.issuer} ${row.id}`, row });
  }
  putIssuer(row: Parameters<RetentionLedger["putIssuer"]>[0]): void {
    this.#pending.push({ key: `issuer ${row.issuer}`, row });
  }
  removeIssuer(issuer: string): void {
    this.#pending.push({ key: `issuer ${issuer}`, row: null });
  }
  seen(): void {}

  /** Rows that were written but not committed. */
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

  /** The state after a crash at this moment. */
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

type Step = "remember" | "done";

/** An operation that waits until the test releases it. */
interface Held {
  readonly name: string;
  /** Changes pins and leases, then the operation continues. */
  apply(): void;
  finish(): void;
  fail(error: Error): void;
  progress(doneBlocks: number): void;
}

/**
 * A literal count of pins and leases by owner and block. Every block exists, except those in
 * `missing`. Operations end at once unless `isHolding`.
 */
class FakeLifecycle implements Lifecycle {
  readonly pins = new Map<string, number>();
  readonly calls: string[] = [];
  readonly held: Held[] = [];
  readonly missing = new Set<string>();
  /** The grants of the callers of `pause`, `renewLease` and `markTransient`. */
  readonly grants: Grant[] = [];
  isHolding = false;
  /** Announces the final report with each change; with `disappoints` a different one follows. */
  foresees = false;
  disappoints = false;
  /** Signals of long operations. */
  readonly signals: AbortSignal[] = [];
  /** Called at each change of pins and leases, before `remember`. */
  onChange: () => void = () => undefined;

  pin(
    blocks: readonly BlockName[],
    o: { owner: string; ttlMs: number | null; remember?: Remember },
  ) {
    return this.#run(`pin ${o.owner} ttl=${o.ttlMs}`, blocks, o.remember, (key) => {
      if (this.missing.has(key)) return "missing";
      this.#count(`${o.owner}/${key}`, 1);
      return "done";
    });
  }

  unpin(blocks: readonly BlockName[], o: { owner: string; remember?: Remember }) {
    return this.#run(`unpin ${o.owner}`, blocks, o.remember, (key) => {
      if ((this.pins.get(`${o.owner}/${key}`) ?? 0) === 0) return "already";
      this.#count(`${o.owner}/${key}`, -1);
      return "done";
    });
  }

  retain(
    blocks: readonly BlockName[],
    o: { owner: string; priority: number; idleMs: number | null; remember?: Remember },
  ) {
    const name = `retain ${o.owner} ${o.priority} idle=${o.idleMs}`;
    return this.#run(name, blocks, o.remember, () => "done");
  }

  prune(
    after: BlockName,
    _origin: unknown,
    o: { onProgress?: OnProgress; signal?: AbortSignal } = {},
  ) {
    return this.#run("prune", [after], undefined, () => "done", o);
  }

  markTransient(
    blocks: readonly BlockName[],
    _origin: unknown,
    o: { grant: Grant; remember?: Remember },
  ) {
    this.grants.push(o.grant);
    return this.#run("mark", blocks, o.remember, () => "done");
  }

  purgeTransient(blocks: readonly BlockName[], _origin: unknown, o: { remember?: Remember } = {}) {
    return this.#run("purge", blocks, o.remember, () => "done");
  }

  pause(
    blocks: readonly BlockName[],
    o: { lease: string; owner: string; ttlMs: number | null; grant: Grant; remember?: Remember },
  ) {
    this.grants.push(o.grant);
    const name = `pause ${o.lease} ${o.owner} ttl=${o.ttlMs}`;
    const isThere = (key: string) => !this.missing.has(key);
    const ttlMs = blocks.some(({ given }) => isThere(String(given)))
      ? (o.ttlMs ?? 86_400_000)
      : null;
    const outcome = (key: string) => (isThere(key) ? "done" : "missing");
    return this.#run(name, blocks, o.remember, outcome, {}, ttlMs);
  }

  renewLease(lease: string, ttlMs: number, o: { grant: Grant; remember?: Remember }) {
    this.grants.push(o.grant);
    return this.#run(`renew ${lease} ${ttlMs}`, ONE, o.remember, () => "done", {}, ttlMs);
  }

  revokeLease(lease: string, _origin: unknown, o: { remember?: Remember } = {}) {
    const isThere = !this.missing.has(lease);
    return this.#run(`revoke ${lease}`, ONE, o.remember, () => (isThere ? "done" : "missing"));
  }

  warm(
    blocks: readonly BlockName[],
    o: {
      target: string;
      sources: readonly string[];
      onProgress?: OnProgress;
      signal?: AbortSignal;
    },
  ) {
    const name = `warm ${o.target} from=${o.sources.join("+")}`;
    return this.#run(name, blocks, undefined, () => "done", o);
  }

  flush() {
    return this.#run("flush", [], undefined, () => "done");
  }

  setGpuSink(_sink: GpuSink | null): void {}

  #count(key: string, by: number): void {
    this.pins.set(key, (this.pins.get(key) ?? 0) + by);
  }

  #run(
    name: string,
    blocks: readonly BlockName[],
    remember: Remember | undefined,
    change: (key: string) => CommandOutcome,
    long: { onProgress?: OnProgress; signal?: AbortSignal } = {},
    ttlMs: number | null = null,
  ): Promise<LifecycleReport> {
    this.calls.push(name);
    if (long.signal) this.signals.push(long.signal);
    let results: BlockResult[] | null = null;
    let expected: LifecycleReport | undefined;
    const made = (): LifecycleReport => {
      const counts = countOutcomes(results!);
      return { results: results!, counts, held: [], bytes: 0, figures: null, ttlMs, durable: true };
    };
    const take = (step: Step) => {
      if (results !== null) return;
      results = blocks.map(({ given }) => ({ outcome: change(given.toString()) }));
      this.onChange();
      if (this.foresees) expected = made();
      if (step === "remember" || remember) remember?.(results, expected);
    };
    const report = (): LifecycleReport => {
      take("done");
      if (this.disappoints) return { ...made(), durable: false };
      return expected ?? made();
    };
    if (!this.isHolding) return Promise.resolve(report());
    return new Promise((resolve, reject) => {
      this.held.push({
        name,
        apply: () => take("remember"),
        finish: () => resolve(report()),
        fail: reject,
        progress: (doneBlocks) =>
          long.onProgress?.({ doneBlocks, doneBytes: doneBlocks * 4096, totalBlocks: 100 }),
      });
    });
  }
}

const ONE: readonly BlockName[] = [{ kind: "hash", given: 0, lo: 0, hi: 0 }];
