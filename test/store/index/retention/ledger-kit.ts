import { cpSync, existsSync, mkdirSync } from "node:fs";
import { join } from "node:path";
import { systemClock } from "../../../../src/core/index.ts";
import {
  type LedgerContents,
  openRetentionLedger,
  type RetentionLedger,
  type RetentionLedgerOptions,
  type RetentionRow,
} from "../../../../src/store/index/index.ts";

export const OWNER = { worker: "worker-a", machine: "machine-a" } as const;
export const LEDGER_FILE = "holds.sqlite";

export function openLedger(
  folder: string,
  options: Partial<RetentionLedgerOptions> = {},
): Promise<RetentionLedger> {
  const all = { folder, incarnation: 1n, owner: OWNER, clock: systemClock };
  return openRetentionLedger({ ...all, ...options });
}

/** A hold all of whose columns are a function of its number. */
export function holdOf(number: number, change: Partial<RetentionRow> = {}): RetentionRow {
  const kind = (["pin", "retain", "lease"] as const)[number % 3]!;
  const blocks = new Uint8Array(36 * (1 + (number % 64)));
  for (let at = 0; at < blocks.length; at++) blocks[at] = number * 7 + at;
  return {
    id: number,
    kind,
    owner: `owner-${number % 5}`,
    name: kind === "lease" ? `lease-${number}` : null,
    deadlineBootMs: number % 2 === 0 ? null : number * 1_000 + 0.5,
    bootId: "boot-a",
    priority: kind === "retain" ? number % 100 : null,
    idleMs: kind === "retain" ? 60_000.25 : null,
    createdWallMs: 1_700_000_000_000 + number,
    blocks,
    purges: kind === "lease" && number % 2 === 0,
    ...change,
  };
}

export const commandOf = (number: number) => ({
  issuer: `issuer-${number % 3}`,
  id: `command-${number}`,
  receipt: `{"receipt":${number}}`,
});

export const issuerOf = (number: number, seq: bigint) => ({
  issuer: `issuer-${number}`,
  epoch: 2n ** 64n - 1n - BigInt(number),
  seq,
});

/** For comparing: bytes as hex, 64-bit numbers as text, issuers in order of name. */
export function textOf(contents: Omit<LedgerContents, "parts"> & Partial<LedgerContents>) {
  const { holds, parts = [], commands, issuers, lastSeen } = contents;
  return {
    parts: parts.map((row) => ({ ...row, blocks: row.blocks.toHex() })),
    holds: holds.map((row) => ({ ...row, blocks: row.blocks.toHex() })),
    commands: [...commands],
    issuers: issuers.map(({ issuer, epoch, seq }) => `${issuer} ${epoch} ${seq}`).sort(),
    lastSeen,
  };
}

export const NOTHING = textOf({ holds: [], commands: [], issuers: [], lastSeen: null });

export function upTo(count: number): number[] {
  return Array.from({ length: count }, (_, at) => at + 1);
}

/** The report of a ledger with these entries and as many commands. */
export function contentsOf(numbers: readonly number[]) {
  const [holds, commands] = [
    numbers.map((number) => holdOf(number)),
    numbers.map((number) => commandOf(number)),
  ];
  return textOf({ holds, commands, issuers: [], lastSeen: null });
}

/** The files that a process which dies now leaves, in another folder. */
export function crashImage(folder: string, target: string): string {
  mkdirSync(target);
  for (const file of [LEDGER_FILE, `${LEDGER_FILE}-wal`]) {
    if (existsSync(join(folder, file))) cpSync(join(folder, file), join(target, file));
  }
  return target;
}

/** The report of a ledger in this folder when it is opened and closed. */
export async function readLedger(folder: string, incarnation = 99n) {
  await using ledger = await openLedger(folder, { incarnation });
  return { ...textOf(ledger.contents), state: ledger.state };
}
