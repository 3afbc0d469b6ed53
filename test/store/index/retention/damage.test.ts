import { Database } from "bun:sqlite";
import { beforeAll, describe, expect, test } from "bun:test";
import { cpSync, existsSync, readFileSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import fc from "fast-check";
import type { RetentionLedger } from "../../../../src/store/index/index.ts";
import { tempDir } from "../../../support/index.ts";
import {
  commandOf,
  contentsOf,
  crashImage,
  holdOf,
  issuerOf,
  LEDGER_FILE,
  NOTHING,
  openLedger,
  textOf,
  upTo,
} from "./ledger-kit.ts";

const HOLDS = 120;
const folders = tempDir();
const clean = join(folders, "clean");
/** Ended in the middle: its log holds what `clean` has in its file. */
const crashed = join(folders, "crashed");
/** Its rows after each of its commits. */
const states: string[] = [];
let cleanText = "";

const partOf = (hold: number) => ({ hold, part: 1, blocks: new Uint8Array(72).fill(hold) });

beforeAll(async () => {
  const ledger = await openLedger(clean);
  states.push(JSON.stringify(NOTHING));
  for (const number of upTo(HOLDS)) {
    ledger.putHold(holdOf(number));
    ledger.putCommand(commandOf(number));
    if (number % 10 === 0) ledger.putPart(partOf(number));
    if (number > 40) ledger.removeHold(number - 40);
    ledger.putIssuer(issuerOf(0, BigInt(number)));
    ledger.seen("boot-a", number);
    expect(await ledger.commit({ durable: false })).toBe(true);
    const { commands } = contentsOf(upTo(number));
    const { holds } = contentsOf(upTo(number).slice(-40));
    const issuers = [`issuer-0 ${2n ** 64n - 1n} ${number}`];
    const lastSeen = { bootId: "boot-a", bootMs: number };
    const parts = upTo(number)
      .slice(-40)
      .filter((at) => at % 10 === 0)
      .map((at) => ({ ...partOf(at), blocks: partOf(at).blocks.toHex() }));
    states.push(JSON.stringify({ parts, holds, commands, issuers, lastSeen }));
  }
  cleanText = states.at(-1)!;
  crashImage(clean, crashed);
  expect(await ledger.close(5_000)).toBe(true);
});

let made = 0;

/** Opens a copy that `damage` has changed, and hands the result to `check` unless set aside. */
async function opened(
  source: string,
  damage: (folder: string) => void,
  check: (ledger: RetentionLedger, folder: string) => Promise<void>,
): Promise<"set aside" | "as it was"> {
  const folder = join(folders, `copy-${made++}`);
  cpSync(source, folder, { recursive: true });
  damage(folder);
  try {
    await using ledger = await openLedger(folder, { incarnation: 9n });
    expect(ledger.state.failing).toBeNull();
    if (ledger.state.setAside !== null) {
      expect(textOf(ledger.contents)).toEqual(NOTHING);
      expect(existsSync(ledger.state.setAside.path)).toBe(true);
      expect(ledger.state.setAside.why).not.toBe("");
      return "set aside";
    }
    await check(ledger, folder);
    return "as it was";
  } finally {
    rmSync(folder, { recursive: true });
  }
}

function flipped(file: string, flips: readonly { at: number; mask: number }[]) {
  return (folder: string): void => {
    const path = join(folder, file);
    const bytes = readFileSync(path);
    for (const { at, mask } of flips) bytes[at % bytes.length]! ^= mask;
    writeFileSync(path, bytes);
  };
}

async function expectClean(ledger: RetentionLedger): Promise<void> {
  expect(JSON.stringify(textOf(ledger.contents))).toBe(cleanText);
}

async function expectSomeState(ledger: RetentionLedger): Promise<void> {
  expect(states).toContain(JSON.stringify(textOf(ledger.contents)));
}

const flip = fc.record({ at: fc.nat(2 ** 30), mask: fc.integer({ min: 1, max: 255 }) });
const flips = fc.array(flip, { minLength: 1, maxLength: 6 });

test("a copy that nothing was done to is as it was, and can be written to", async () => {
  const write = async (ledger: RetentionLedger) => {
    await expectClean(ledger);
    ledger.removeHold(HOLDS);
    expect(await ledger.commit()).toBe(true);
  };
  expect(await opened(clean, () => {}, write)).toBe("as it was");
  expect(await opened(crashed, () => {}, write)).toBe("as it was");
});

describe("a ledger with flipped bytes", () => {
  test("is set aside, or gives back every row as it was written", async () => {
    const outcomes = new Set<string>();
    const property = fc.asyncProperty(flips, async (where) => {
      outcomes.add(await opened(clean, flipped(LEDGER_FILE, where), expectClean));
    });
    await fc.assert(property, { numRuns: 50 });
    expect(outcomes).toContain("set aside");
  });

  test("gives what one of its commits left, where its log was hit", async () => {
    const property = fc.asyncProperty(flips, async (where) => {
      await opened(crashed, flipped(`${LEDGER_FILE}-wal`, where), expectSomeState);
    });
    await fc.assert(property, { numRuns: 20 });
  });

  test("gives what one of its commits left, where its log was cut", async () => {
    const bytes = readFileSync(join(crashed, `${LEDGER_FILE}-wal`)).length;
    const property = fc.asyncProperty(fc.nat(bytes), async (length) => {
      const cut = (folder: string) => truncateSync(join(folder, `${LEDGER_FILE}-wal`), length);
      await opened(crashed, cut, expectSomeState);
    });
    await fc.assert(property, { numRuns: 15 });
  });
});

test("a file that was cut, or is none of ours, is set aside", async () => {
  const bytes = readFileSync(join(clean, LEDGER_FILE)).length;
  for (const length of [1, 100, 4_096, bytes / 2, bytes - 1]) {
    const cut = (folder: string) => truncateSync(join(folder, LEDGER_FILE), Math.floor(length));
    expect(await opened(clean, cut, expectClean)).toBe("set aside");
  }
  const other = (folder: string) => {
    rmSync(join(folder, LEDGER_FILE));
    using db = new Database(join(folder, LEDGER_FILE), { create: true });
    db.run("CREATE TABLE x (y)");
  };
  expect(await opened(clean, other, expectClean)).toBe("set aside");
});

const BY_HAND = [
  "DELETE FROM holds WHERE id = 100",
  "DELETE FROM parts WHERE hold = 100",
  "UPDATE parts SET part = 2 WHERE hold = 100",
  "UPDATE parts SET part = part + (1 << 40) WHERE hold = 100",
  "DELETE FROM commands WHERE id = 50",
  "DELETE FROM issuers",
  "DELETE FROM ledger",
  "UPDATE holds SET deadline_boot_ms = deadline_boot_ms + 1 WHERE deadline_boot_ms IS NOT NULL",
  "UPDATE holds SET kind = 'other' WHERE id = 100",
  "UPDATE holds SET owner = 'me' WHERE id = 100",
  "UPDATE holds SET id = 5 WHERE id = 100",
  "UPDATE commands SET id = 1000 WHERE id = 50",
  "UPDATE issuers SET used = used + 1",
  "UPDATE issuers SET seq = x'00'",
  "UPDATE issuers SET seq = x'0000000000000000'",
  "UPDATE ledger SET boot_ms = boot_ms + 1",
  "UPDATE ledger SET hold_count = hold_count - 1",
  "UPDATE ledger SET worker = 'worker-b'",
  "UPDATE holds SET seal = x'' WHERE id = 100",
  "CREATE TABLE more (x)",
  "PRAGMA user_version = 7",
  "PRAGMA application_id = 1213355080",
];

test.each(BY_HAND)("a ledger after %s is set aside", async (sql) => {
  const change = (folder: string) => {
    using db = new Database(join(folder, LEDGER_FILE));
    db.run(sql);
  };
  expect(await opened(clean, change, expectClean)).toBe("set aside");
});
