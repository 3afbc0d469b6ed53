import { describe, expect, test } from "bun:test";
import type { PinKind } from "../../../src/store/pins/index.ts";
import { Oracle } from "../oracle.ts";
import type { Listing, Receipt, TreeEntry } from "./agent-door.ts";
import { CommandTally } from "./command-tally.ts";
import type { DeedRoom } from "./deed.ts";
import { hexOf } from "./deed.ts";
import { judge } from "./hold-audit.ts";
import { PinDeed, RevokeDeed, UnpinDeed } from "./hold-deeds.ts";
import { HoldModel, type Span } from "./hold-model.ts";
import { HoldTimes } from "./hold-times.ts";

const AT: Span = { lo: 1_000, hi: 1_100 };

function room(): DeedRoom & { readonly complaints: string[] } {
  const complaints: string[] = [];
  const complain = (text: string) => complaints.push(text);
  return { model: new HoldModel(), oracle: new Oracle(), softMayGo: false, complain, complaints };
}

function receipt(...outcomes: string[]): Receipt {
  const blocks = outcomes.map((outcome) => ({ block: "", outcome }));
  return { id: "c1", type: "Cache", status: "ok", counts: {}, blocks };
}

function listing(
  kind: PinKind,
  atMs: number,
  ...holds: [string, number, number | null][]
): Listing {
  return {
    kind,
    askedMs: atMs,
    answeredMs: atMs + 10,
    holds: holds.map(([owner, blocks, remaining_seconds]) => {
      const name = kind === "lease" ? owner : null;
      return { kind, owner, name, blocks, remaining_seconds };
    }),
  };
}

function timesOf({ model, complain }: DeedRoom, tally = new CommandTally(), readyMs = 0) {
  return new HoldTimes({ model, tally, complain, readyMs });
}

describe("what must hold", () => {
  test("a pin that said done is a promise; deferred and unanswered ones are not", () => {
    const { model, ...rest } = room();
    const own = { model, ...rest };
    new PinDeed(own, "a", [1, 2], null).done(receipt("done", "deferred"), AT, true);
    new PinDeed(own, "a", [3], null).done(receipt("done"), AT, false);
    expect([1, 2, 3].map((id) => model.isPromised(id, 2_000))).toEqual([true, false, false]);
    expect([1, 2, 3].map((id) => model.countOf("pin a", id))).toEqual([1, 1, 1]);
    model.markSent([1], 2_000);
    expect(model.isPromised(1, 2_000)).toBe(false);
  });

  test("each unpin takes one, and one too many or too few is told", () => {
    const own = room();
    new PinDeed(own, "a", [1], null).done(receipt("done"), AT, true);
    const unpin = new UnpinDeed(own, "a", [1]);
    unpin.done(receipt("already"));
    expect(own.complaints).toEqual(["block 1 has lost 1 of pin a"]);
    unpin.done(receipt("done"));
    unpin.done(receipt("done"));
    expect(own.complaints.at(-1)).toBe("block 1 had a pin a too many");
  });

  test("a lease that is over is not revoked", () => {
    const own = room();
    new RevokeDeed(own, "l").done({ ...receipt(), counts: { done: 1 } }, AT, true);
    expect(own.complaints).toEqual(["lease l is over and was revoked"]);
  });

  test("after a start holds have what is there, and a promise that is broken is told", () => {
    const own = room();
    new PinDeed(own, "a", [1, 2], null).done(receipt("done", "deferred"), AT, true);
    expect(own.model.restored(() => false, 2_000)).toEqual([1]);
    expect(own.model.all()).toEqual([]);
    own.model.revive((id) => id === 2);
    expect([1, 2].map((id) => own.model.countOf("pin a", id))).toEqual([0, 1]);
    expect(own.model.lapsedBlocks("pin a")).toBe(1);
    expect(own.model.restored(() => true, 2_000)).toEqual([]);
    expect(own.model.lapsedBlocks("pin a")).toBe(0);
  });
});

describe("when holds end", () => {
  const pinned = (own: DeedRoom) =>
    new PinDeed(own, "t", [1], 3_000).done(receipt("done"), AT, true);

  test.each([
    ["gone too early", 2_900, null, /gone 1090 ms before/],
    ["there too late", 5_200, 0, /is there 1100 ms after/],
    ["with too much left", 2_000, 3.2, /wrong by 1100/],
    ["with too little left", 2_000, 0.9, /wrong by 1090/],
  ])("%s", (_, atMs, left, words) => {
    const own = room();
    pinned(own);
    timesOf(own).look(
      listing("pin", atMs, ...(left === null ? [] : [["t", 1, left] as [string, number, number]])),
    );
    expect(own.complaints).toEqual([expect.stringMatching(words)]);
  });

  test("in time, once, and never again", () => {
    const own = room();
    pinned(own);
    const tally = new CommandTally();
    const times = timesOf(own, tally);
    times.look(listing("pin", 3_900, ["t", 1, 0.15]));
    times.look(listing("pin", 4_150));
    expect(own.complaints).toEqual([]);
    expect(tally).toMatchObject({ expiries: 1, lateMs: 60, earlyMs: 0 });
    times.look(listing("pin", 4_300, ["t", 1, 0.15]));
    expect(own.complaints).toEqual([expect.stringMatching(/^pin t is there again, with 150 ms/)]);
  });

  test("while nobody looked nothing was late; while no agent ran neither", () => {
    const own = room();
    pinned(own);
    timesOf(own, new CommandTally(), 9_000).look(listing("pin", 9_050));
    pinned(own);
    const times = timesOf(own);
    times.look(listing("pin", 3_900, ["t", 1, 0.15]));
    times.look(listing("pin", 9_000));
    expect(own.complaints).toEqual([]);
  });
});

describe("what an agent shows", () => {
  const entry = (pins: number, ...owners: string[]): TreeEntry => ({
    digest: hexOf(1),
    pins,
    tiers: ["ssd"],
    held_by: owners.map((owner) => ({ kind: "pin", owner })),
  });
  const shown = (own: DeedRoom, count: number, tree: TreeEntry | null) => {
    const lists = [listing("pin", 2_000, ["a", count, null])];
    const blocks = new Map(tree === null ? [] : [[1, tree]]);
    judge(own, timesOf(own), { first: lists, second: lists, tree: blocks });
  };

  test.each([
    ["as it must be", 2, entry(2, "a"), []],
    ["counted twice", 2, entry(3, "a"), [/has 3 pins, not 2/]],
    ["by somebody else, too", 2, entry(2, "a", "b"), [/held by pin b, who must not/]],
    ["by nobody", 2, entry(2), [/not held by pin a/]],
    ["in a list that says less", 1, entry(2, "a"), [/holds 1 blocks less/]],
    ["not there", 2, null, [/is held and not there/]],
  ])("%s", (_, count, tree, words) => {
    const own = room();
    for (let i = 0; i < 2; i++) new PinDeed(own, "a", [1], null).done(receipt("done"), AT, true);
    shown(own, count, tree);
    expect(own.complaints).toEqual(words.map((word) => expect.stringMatching(word)));
  });
});
