import type { Receipt } from "../../src/control/index.ts";

/** The blocks that one command named, as its sender remembers them. */
export interface Sent {
  readonly issuer: string;
  readonly id: string;
  readonly sentMs: number;
}

export interface LeaseTerms {
  readonly ttlSeconds: number;
  /** Between these two it was granted; milliseconds of one clock. */
  readonly sentMs: number;
  readonly answeredMs: number;
}

/** Something that is not as the receipts say. */
export interface Finding {
  /** `double`: more came of a command than once. `lost`: less. `odd`: neither, and wrong. */
  readonly kind: "double" | "lost" | "odd";
  readonly what: string;
}

/**
 * What must be so at an agent, by the receipts of all commands: each is settled (asked again until
 * it was answered) before the next one about the same thing is sent.
 */
export class Oracle {
  /** Pins by owner and block. */
  readonly pins = new Map<string, Map<number, number>>();
  /** Priority of the soft pin of an owner; 0: none. */
  readonly retained = new Map<string, number>();
  readonly leases = new Map<string, LeaseTerms | null>();
  /** Blocks that are there, and whether they are marked as transient. */
  readonly marked = new Map<number, boolean>();
  /** Commands without an id: each pins for an owner of its own. True: it was acknowledged. */
  readonly onceAtMost = new Map<string, boolean>();
  /** Those carried out and answered, by issuer and id. */
  readonly acknowledged = new Set<string>();
  readonly findings: Finding[] = [];

  find(kind: Finding["kind"], what: string): void {
    this.findings.push({ kind, what });
  }

  count(kind: Finding["kind"]): number {
    return this.findings.filter((finding) => finding.kind === kind).length;
  }

  /** A command was carried out, and this says so. */
  answered({ issuer, id }: Sent, receipt: Receipt): void {
    if (receipt.id !== id || receipt.issuer !== issuer) {
      this.find("odd", `${issuer} ${id} was answered by the receipt of ${receipt.id}`);
    }
    this.acknowledged.add(keyOf(issuer, id));
  }

  pinned(owner: string, receipt: Receipt): void {
    this.#count(owner, receipt, 1);
  }

  unpinned(owner: string, receipt: Receipt): void {
    this.#count(owner, receipt, -1);
  }

  /** All blocks of an owner's that ever had a pin. */
  blocksOf(owner: string): number[] {
    return [...(this.pins.get(owner)?.keys() ?? [])];
  }

  #count(owner: string, { blocks }: Receipt, step: number): void {
    const counts = this.pins.get(owner) ?? new Map<number, number>();
    this.pins.set(owner, counts);
    for (const { block, outcome, reason } of blocks) {
      const at = Number(block);
      const before = counts.get(at) ?? 0;
      // Deferred: it is pinned, and its copy on SSD is still to come.
      const isDone = outcome === "done" || outcome === "deferred";
      if (!isDone && outcome !== "already") {
        this.find("odd", `${owner}: ${block} was ${outcome}: ${reason}`);
      }
      counts.set(at, isDone ? before + step : before);
    }
  }
}

export function keyOf(issuer: string, id: string): string {
  return `${issuer} ${id}`;
}

/** How often each command was carried out, by the audit log; and what was refused, by its word. */
export interface AuditSum {
  readonly carriedOut: ReadonlyMap<string, number>;
  readonly refused: ReadonlyMap<string, number>;
  readonly duplicates: number;
  /** Refusals that got no line of their own. */
  readonly leftOut: number;
}

export function readAudit(text: string): AuditSum {
  const carriedOut = new Map<string, number>();
  const refused = new Map<string, number>();
  let [duplicates, leftOut] = [0, 0];
  const add = (map: Map<string, number>, key: string) => map.set(key, (map.get(key) ?? 0) + 1);
  for (const line of text.split("\n")) {
    if (line === "") continue;
    const record = JSON.parse(line);
    leftOut += record.left_out ?? 0;
    if (record.duplicate === true) duplicates++;
    else if (record.status === "rejected") add(refused, record.reason.split(":")[0]);
    else if (record.id !== null) add(carriedOut, keyOf(record.issuer, record.id));
  }
  return { carriedOut, refused, duplicates, leftOut };
}

/** By the audit log: nothing twice, and nothing that was acknowledged never. */
export function compareAudit(oracle: Oracle, { carriedOut }: AuditSum): void {
  for (const [key, times] of carriedOut) {
    if (times > 1) oracle.find("double", `${key} was carried out ${times} times`);
  }
  for (const key of oracle.acknowledged) {
    if (!carriedOut.has(key)) oracle.find("lost", `${key} was acknowledged and not carried out`);
  }
}

/** Pins of an owner on one block: what was found against what receipts add up to. */
export function comparePins(oracle: Oracle, owner: string, block: number, found: number): void {
  const wanted = oracle.pins.get(owner)?.get(block) ?? 0;
  if (found === wanted) return;
  const what = `${owner} has ${found} pins on ${block}, receipts say ${wanted}`;
  oracle.find(found > wanted ? "double" : "lost", what);
}

/** A soft pin is as its owner wished last. */
export function compareRetained(oracle: Oracle, found: ReadonlyMap<string, number[]>): void {
  for (const [owner, priority] of oracle.retained) {
    const have = found.get(owner) ?? [];
    const wanted = priority === 0 ? [] : [priority];
    if (Bun.deepEquals(have, wanted)) continue;
    const what = `${owner} has soft pins of [${have}], its last command says [${wanted}]`;
    oracle.find(have.length === 0 ? "lost" : "double", what);
  }
}

/** Seconds by which clocks and roundings may differ. */
const LEEWAY_S = 1.5;

export function compareLeases(
  oracle: Oracle,
  found: ReadonlyMap<string, number>,
  nowMs: number,
): void {
  for (const [name, terms] of oracle.leases) {
    const left = found.get(name);
    if (terms === null && left !== undefined) {
      oracle.find("double", `${name} was revoked, and there it is`);
    }
    if (terms === null) continue;
    const { ttlSeconds, sentMs, answeredMs } = terms;
    const least = ttlSeconds - (nowMs - sentMs) / 1_000 - LEEWAY_S;
    const most = ttlSeconds - (nowMs - answeredMs) / 1_000 + LEEWAY_S;
    if (left === undefined) oracle.find("lost", `${name} was granted, and is not there`);
    else if (left < least || left > most) {
      const what = `${name} has ${left} s left, its last command says ${least} to ${most}`;
      oracle.find("double", what);
    }
  }
}

/** Commands without an id: once at most, and once where they were acknowledged. */
export function compareOnceAtMost(oracle: Oracle, found: ReadonlyMap<string, number>): void {
  for (const [owner, isAcknowledged] of oracle.onceAtMost) {
    const times = found.get(owner) ?? 0;
    if (times > 1) oracle.find("double", `${owner} has ${times} pins, by one command`);
    if (times === 0 && isAcknowledged) oracle.find("lost", `${owner} was acknowledged, has no pin`);
  }
}
