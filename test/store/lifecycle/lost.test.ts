import { expect } from "bun:test";
import { readFileSync, rmSync, writeFileSync } from "node:fs";
import type { HearthEvent } from "../../../src/observability/activity/index.ts";
import { describeNative } from "../../support/index.ts";
import { chain } from "../names.ts";
import type { SsdKit } from "../ssd/ssd-kit.ts";
import { type Life, useLife } from "./lifecycle-kit.ts";

const DAMAGED = "file on SSD damaged";
const GONE = "file on SSD missing or unreadable";

function flipBits(path: string): void {
  const bytes = readFileSync(path);
  for (const at of [4096, 4096 + 2_500]) bytes[at] = bytes[at]! ^ 0xff;
  writeFileSync(path, bytes);
}

const said = ({ events }: Life) => events.page(0, 100).events.map(({ event }) => event);

const lost = (owner: string, why: string, name: string | null = null): HearthEvent => ({
  kind: "hold_lost",
  hold: name === null ? "pin" : "lease",
  owner,
  name,
  blocks: 1,
  why,
});

/** Stores blocks on SSD only. */
async function onSsd(kit: SsdKit, ...names: string[]) {
  const engine = kit.engine();
  await engine.put(...names);
  await kit.settled();
  return engine;
}

describeNative("a retained block that is lost", () => {
  const it = useLife();

  it("to flipped bits on SSD: the engine gets a miss, and the owner is named", {}, async (t) => {
    const { kit, life } = t;
    const engine = await onSsd(kit, "a", "b");
    await life.pin("router", "a");
    await life.pause("night", "a");
    kit.leaveRam();
    flipBits(kit.fileOf("a"));
    expect(await engine.load("a", "b")).toEqual(["miss", "ok"]);
    await kit.settled();
    expect(said(life)).toEqual([lost("router", DAMAGED), lost("o", DAMAGED, "night")]);
    expect(life.holds.counts().lost).toBe(2);
    // The block is retained again as soon as it is stored again.
    expect(await engine.put("a")).toEqual(["ok"]);
    await kit.settled();
    expect(kit.store.table.isKept(kit.nodeOf("a"))).toBe(true);
    kit.leaveRam();
    expect(await engine.load("a")).toEqual(["ok"]);
    expect(said(life)).toHaveLength(2);
  });

  it("to flipped bits in RAM: the owner is named if SSD has no copy", {}, async (t) => {
    const { kit, life } = t;
    const engine = await onSsd(kit, "a", "b");
    await life.pin("router", "a");
    await life.pin("router", "b");
    const [a, b] = engine.acquire(["a", "b"]);
    await kit.ssd.room.drop(kit.nodeOf("b"));
    for (const block of [a!, b!]) engine.flip(block);
    expect(await engine.report([a!, b!])).toEqual(["corrupt", "corrupt"]);
    await kit.settled();
    expect(said(life)).toEqual([lost("router", "bytes in RAM damaged")]);
    expect(await engine.load("a", "b")).toEqual(["ok", "miss"]);
    expect(await engine.put("b")).toEqual(["ok"]);
    await kit.settled();
    expect(kit.store.table.isKept(kit.nodeOf("b"))).toBe(true);
  });

  it("is named also if only a descendant is retained", {}, async (t) => {
    const { kit, life } = t;
    const engine = await onSsd(kit, ...chain("a/b/c"));
    await life.pin("router", "a/b/c");
    await life.pin("other", "a/b");
    kit.leaveRam();
    rmSync(kit.fileOf("a/b"));
    await engine.load(...chain("a/b/c"));
    await kit.settled();
    expect(said(life)).toEqual([lost("other", GONE), lost("router", GONE)]);
  });

  it("to a medium error is named", {}, async ({ kit, life, faults }) => {
    const engine = await onSsd(kit, "a");
    await life.pin("router", "a");
    kit.leaveRam();
    faults("load.read:1+:EIO");
    expect(await engine.load("a")).toEqual(["miss"]);
    faults("");
    await kit.settled();
    expect(said(life)).toEqual([lost("router", GONE)]);
  });

  it("is found by the scrub before a reader requests it", { scrubBytesPerS: 50_000 }, async (t) => {
    const { kit, life } = t;
    await onSsd(kit, "a");
    await life.pin("router", "a");
    kit.leaveRam();
    flipBits(kit.fileOf("a"));
    await kit.until(() => life.holds.counts().lost === 1, "the scrub");
    expect(said(life)).toEqual([lost("router", DAMAGED)]);
    await kit.settled();
  });

  it("is not named if it has no owner, or a copy in RAM", {}, async ({ kit, life }) => {
    const engine = await onSsd(kit, "a", "b");
    await life.pin("router", "b");
    flipBits(kit.fileOf("a"));
    kit.leaveRam();
    expect(await engine.load("a", "b")).toEqual(["miss", "ok"]);
    await kit.settled();
    await kit.ssd.room.quarantine(kit.nodeOf("b"));
    expect(said(life)).toEqual([]);
    expect(await engine.load("b")).toEqual(["ok"]);
  });
});
