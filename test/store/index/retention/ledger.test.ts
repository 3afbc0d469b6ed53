import { expect, test } from "bun:test";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import fc from "fast-check";
import type {
  CommandRow,
  IssuerRow,
  PartRow,
  RetentionRow,
} from "../../../../src/store/index/index.ts";
import { ManualClock, tempDir } from "../../../support/index.ts";
import { openIndex } from "../index-kit.ts";
import { LineChild } from "../line-child.ts";
import {
  commandOf,
  contentsOf,
  crashImage,
  holdOf,
  issuerOf,
  NOTHING,
  OWNER,
  openLedger,
  readLedger,
  textOf,
  upTo,
} from "./ledger-kit.ts";

const SOUND = { failing: null, pending: 0, dropped: 0, setAside: null };
const folders = tempDir();
const newFolder = (): string => join(folders, crypto.randomUUID());

test("a new ledger is empty, and lies beside the index of an agent that runs", async () => {
  const folder = newFolder();
  await using index = await openIndex(folder);
  await using ledger = await openLedger(folder);
  expect(textOf(ledger.contents)).toEqual(NOTHING);
  expect(ledger.state).toEqual(SOUND);
  expect(index.state.failing).toBeNull();
});

test("committed entries are identical after a restart", async () => {
  const folder = newFolder();
  const ledger = await openLedger(folder);
  for (const number of upTo(200)) {
    ledger.putHold(holdOf(number));
    ledger.putCommand(commandOf(number));
  }
  ledger.putIssuer(issuerOf(1, 4n));
  ledger.putIssuer(issuerOf(2, 0n));
  ledger.putIssuer(issuerOf(1, 5n));
  ledger.seen("boot-a", 123_456.5);
  expect(await ledger.commit()).toBe(true);
  for (const number of upTo(100)) ledger.removeHold(number * 2);
  ledger.removeHold(100_000);
  ledger.putHold(holdOf(7, { deadlineBootMs: 99, owner: "another" }));
  expect(await ledger.commit({ durable: false })).toBe(true);
  expect(await ledger.close(5_000)).toBe(true);
  const numbers = upTo(200).filter((number) => number % 2 === 1);
  const holds = numbers.map((number) =>
    number === 7 ? holdOf(7, { deadlineBootMs: 99, owner: "another" }) : holdOf(number),
  );
  const commands = upTo(200).map(commandOf);
  const issuers = [issuerOf(1, 5n), issuerOf(2, 0n)];
  const lastSeen = { bootId: "boot-a", bootMs: 123_456.5 };
  const expected = textOf({ holds, commands, issuers, lastSeen });
  expect(await readLedger(folder)).toEqual({ ...expected, state: SOUND });
  expect(await readLedger(folder)).toEqual({ ...expected, state: SOUND });
});

test("changes without a commit call are committed soon, and by closing", async () => {
  const folder = newFolder();
  const clock = new ManualClock();
  const ledger = await openLedger(folder, { clock });
  ledger.putHold(holdOf(1));
  expect(ledger.state.pending).toBe(1);
  clock.advance(100);
  while (ledger.state.pending > 0) await Bun.sleep(1);
  const image = crashImage(folder, newFolder());
  expect((await readLedger(image)).holds).toEqual(contentsOf([1]).holds);
  ledger.putHold(holdOf(2));
  expect(await ledger.close(5_000)).toBe(true);
  expect((await readLedger(folder)).holds).toEqual(contentsOf([1, 2]).holds);
});

test("the boot clock is written with the next commit, and stays if none is given", async () => {
  const folder = newFolder();
  const ledger = await openLedger(folder);
  ledger.seen("boot-a", 1);
  ledger.seen("boot-a", 2);
  expect(await ledger.commit()).toBe(true);
  expect(await ledger.close(5_000)).toBe(true);
  const again = await openLedger(folder, { incarnation: 2n });
  again.putHold(holdOf(1));
  expect(await again.close(5_000)).toBe(true);
  expect((await readLedger(folder)).lastSeen).toEqual({ bootId: "boot-a", bootMs: 2 });
});

test("any number of callers share a commit", async () => {
  const folder = newFolder();
  await using ledger = await openLedger(folder);
  const commits = upTo(2_000).map((number) => {
    ledger.putHold(holdOf(number));
    return ledger.commit();
  });
  expect(await Promise.all(commits)).toEqual(commits.map(() => true));
  expect((await readLedger(crashImage(folder, newFolder()))).holds).toHaveLength(2_000);
});

test("of commands the latest 65,536 are remembered, the oldest first", async () => {
  const folder = newFolder();
  const ledger = await openLedger(folder);
  const [count, max] = [66_000, 65_536];
  for (const number of upTo(count)) ledger.putCommand(commandOf(number));
  expect(await ledger.close(20_000)).toBe(true);
  const again = await openLedger(folder, { incarnation: 2n });
  expect(again.contents.commands).toHaveLength(max);
  expect(again.contents.commands[0]).toEqual(commandOf(count - max + 1));
  // One that is put again is the newest, and takes a place of the ring until the old one goes.
  const renewed = { ...commandOf(count - 5), receipt: "another" };
  again.putCommand(renewed);
  expect(await again.close(5_000)).toBe(true);
  const { commands } = await readLedger(folder);
  expect(commands).toHaveLength(max - 1);
  expect(commands.at(-1)).toEqual(renewed);
  expect(commands.filter(({ id }) => id === renewed.id)).toHaveLength(1);
});

test("an issuer that was removed is gone, also after a crash, and may come again", async () => {
  const folder = newFolder();
  const ledger = await openLedger(folder);
  for (const number of upTo(4)) ledger.putIssuer(issuerOf(number, 1n));
  ledger.removeIssuer(issuerOf(2, 1n).issuer);
  ledger.removeIssuer(issuerOf(4, 1n).issuer);
  ledger.removeIssuer("of nobody");
  expect(await ledger.close(5_000)).toBe(true);
  const again = await openLedger(folder, { incarnation: 2n });
  expect(again.state.setAside).toBeNull();
  expect(again.contents.issuers).toEqual([issuerOf(1, 1n), issuerOf(3, 1n)]);
  again.putIssuer(issuerOf(2, 7n));
  expect(await again.close(5_000)).toBe(true);
  await using last = await openLedger(folder, { incarnation: 3n });
  expect(last.state.setAside).toBeNull();
  expect(last.contents.issuers).toEqual([issuerOf(1, 1n), issuerOf(3, 1n), issuerOf(2, 7n)]);
});

test("of issuers the latest 4,096 are remembered, in the order of their puts", async () => {
  const folder = newFolder();
  const ledger = await openLedger(folder);
  for (const number of upTo(4_100)) ledger.putIssuer(issuerOf(number, 1n));
  expect(await ledger.commit({ durable: false })).toBe(true);
  // One that is put again is the latest.
  ledger.putIssuer(issuerOf(7, 2n));
  for (const number of upTo(3)) ledger.putIssuer(issuerOf(5_000 + number, 1n));
  expect(await ledger.close(5_000)).toBe(true);
  const again = await openLedger(folder, { incarnation: 2n });
  const names = again.contents.issuers.map(({ issuer }) => Number(issuer.slice(7)));
  const kept = upTo(4_100).filter((number) => number > 8);
  expect(names).toEqual([...kept, 7, 5_001, 5_002, 5_003]);
  again.putIssuer(issuerOf(9, 3n));
  again.putIssuer(issuerOf(6_000, 1n));
  expect(await again.close(5_000)).toBe(true);
  const { issuers, state } = await readLedger(folder);
  expect(state.setAside).toBeNull();
  expect(issuers).toHaveLength(4_096);
  expect(issuers.some((text) => text.startsWith("issuer-10 "))).toBe(false);
  expect(issuers.some((text) => text.startsWith("issuer-9 "))).toBe(true);
});

test("of receipts 64 MiB are remembered", async () => {
  const folder = newFolder();
  const ledger = await openLedger(folder);
  const receipt = "é".repeat(2 ** 20);
  for (const number of upTo(40)) {
    ledger.putCommand({ ...commandOf(number), receipt });
    if (number % 10 === 0) expect(await ledger.commit({ durable: false })).toBe(true);
  }
  expect(await ledger.close(20_000)).toBe(true);
  const { commands } = await readLedger(folder);
  expect(commands.map(({ id }) => id)).toEqual(
    upTo(40)
      .slice(8)
      .map((at) => commandOf(at).id),
  );
});

const text = fc.string({
  unit: fc.constantFrom("a", "'", "\0", "é", "💡", "\ud800", "\n"),
  maxLength: 5,
});
const number = fc.oneof(fc.constantFrom(0, -0, 0.1, 2 ** 53, 1e300), fc.integer());
const hold = fc.record<RetentionRow>({
  id: fc.integer({ min: 1, max: 6 }),
  kind: fc.constantFrom("pin", "retain", "lease"),
  owner: text,
  name: fc.option(text),
  deadlineBootMs: fc.option(number),
  bootId: text,
  priority: fc.option(fc.nat(99)),
  idleMs: fc.option(number),
  createdWallMs: number,
  purges: fc.boolean(),
  blocks: fc.uint8Array({ maxLength: 100 }),
});
const part = fc.record<PartRow>({
  hold: fc.integer({ min: 1, max: 6 }),
  part: fc.integer({ min: 1, max: 3 }),
  blocks: fc.uint8Array({ maxLength: 40 }),
});
const command = fc.record<CommandRow>({ issuer: text, id: text, receipt: text });
const u64 = fc.bigInt(0n, 2n ** 64n - 1n);
const issuer = fc.record<IssuerRow>({ issuer: text, epoch: u64, seq: u64 });
const change = fc.oneof(
  hold.map((row) => ({ kind: "hold", row }) as const),
  fc.integer({ min: 1, max: 6 }).map((id) => ({ kind: "remove", id }) as const),
  part.map((row) => ({ kind: "part", row }) as const),
  command.map((row) => ({ kind: "command", row }) as const),
  issuer.map((row) => ({ kind: "issuer", row }) as const),
  fc.boolean().map((isDurable) => ({ kind: "commit", isDurable }) as const),
);

/** The UTF-8 form of text with half a character. */
const sound = <Row>(row: Row): Row =>
  Object.fromEntries(
    Object.entries(row as object).map(([name, value]) => [
      name,
      typeof value === "string" ? value.toWellFormed() : value === 0 ? 0 : value,
    ]),
  ) as Row;

test("says what a plain map of the same changes says", async () => {
  const property = fc.asyncProperty(fc.array(change, { maxLength: 40 }), async (changes) => {
    const folder = newFolder();
    const ledger = await openLedger(folder);
    const holds = new Map<number, RetentionRow>();
    const parts = new Map<number, PartRow>();
    const commands = new Map<string, CommandRow>();
    const issuers = new Map<string, IssuerRow>();
    for (const one of changes) {
      if (one.kind === "hold") {
        ledger.putHold(one.row);
        holds.set(one.row.id, sound(one.row));
      } else if (one.kind === "remove") {
        ledger.removeHold(one.id);
        holds.delete(one.id);
        for (const [key, { hold: of }] of parts) if (of === one.id) parts.delete(key);
      } else if (one.kind === "part") {
        ledger.putPart(one.row);
        const key = one.row.hold * 10 + one.row.part;
        if (one.row.blocks.length > 0) parts.set(key, one.row);
        else parts.delete(key);
      } else if (one.kind === "command") {
        ledger.putCommand(one.row);
        const key = JSON.stringify([sound(one.row).issuer, sound(one.row).id]);
        commands.delete(key);
        commands.set(key, sound(one.row));
      } else if (one.kind === "issuer") {
        ledger.putIssuer(one.row);
        issuers.set(sound(one.row).issuer, sound(one.row));
      } else expect(await ledger.commit({ durable: one.isDurable })).toBe(true);
    }
    expect(await ledger.close(5_000)).toBe(true);
    const expected = textOf({
      holds: [...holds.values()].sort((a, b) => a.id - b.id),
      parts: [...parts].sort(([a], [b]) => a - b).map(([, row]) => row),
      commands: [...commands.values()],
      issuers: [...issuers.values()],
      lastSeen: null,
    });
    expect(await readLedger(folder)).toEqual({ ...expected, state: SOUND });
  });
  await fc.assert(property, { numRuns: 25 });
});

test("a hold that is not one is refused, and spoils nothing", async () => {
  const folder = newFolder();
  await using ledger = await openLedger(folder);
  ledger.putHold(holdOf(1));
  expect(() => ledger.putHold(holdOf(2, { createdWallMs: Number.NaN }))).toThrow();
  expect(() => ledger.putIssuer({ issuer: "a", epoch: -1n, seq: 0n })).toThrow();
  ledger.putHold(holdOf(3));
  expect(await ledger.commit()).toBe(true);
  expect((await readLedger(crashImage(folder, newFolder()))).holds).toEqual(
    contentsOf([1, 3]).holds,
  );
});

test("all changes of one turn are in one transaction", async () => {
  const folder = newFolder();
  await using ledger = await openLedger(folder);
  // Groups of a hold, a command and an issuer, more than one order takes; some are not committed.
  const images: string[] = [];
  const commits: Promise<boolean>[] = [];
  for (const number of upTo(3_000)) {
    ledger.putHold(holdOf(number));
    if (number % 7 === 0) await null;
    ledger.putIssuer(issuerOf(0, BigInt(number)));
    ledger.putCommand(commandOf(number));
    if (number % 3 !== 0) commits.push(ledger.commit({ durable: false }));
    if (number % 50 === 0) await commits.at(-1);
    if (number % 500 === 0) images.push(crashImage(folder, newFolder()));
  }
  await Promise.all(commits);
  for (const image of [...images, crashImage(folder, newFolder())]) {
    const { holds, commands, issuers, state } = await readLedger(image);
    expect(state.setAside).toBeNull();
    expect(holds.length).toBeGreaterThan(0);
    expect(commands).toEqual(holds.map(({ id }) => commandOf(id)));
    expect(issuers).toEqual([`issuer-0 ${2n ** 64n - 1n} ${holds.at(-1)!.id}`]);
  }
});

test.each([{ worker: "worker-b" }, { machine: "machine-b" }])("of %o: refused", async (other) => {
  const folder = newFolder();
  const ledger = await openLedger(folder);
  ledger.putHold(holdOf(1));
  expect(await ledger.close(5_000)).toBe(true);
  const owner = { ...OWNER, ...other };
  expect(openLedger(folder, { owner })).rejects.toMatchObject({ code: "INDEX_FOREIGN" });
  expect((await readLedger(folder)).holds).toHaveLength(1);
});

test("that another agent has: refused while it lives, and sound once it is gone", async () => {
  const folder = newFolder();
  mkdirSync(folder);
  const child = new LineChild([process.execPath, join(import.meta.dir, "holder.ts"), folder]);
  expect(await child.line()).toBe("open");
  expect(openLedger(folder)).rejects.toMatchObject({ code: "INDEX_IN_USE" });
  await child.kill();
  expect(await readLedger(folder)).toEqual({ ...contentsOf([1]), state: SOUND });
});
