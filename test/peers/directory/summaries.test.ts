import { describe, expect, test } from "bun:test";
import type { WorkerId } from "../../../src/core/index.ts";
import {
  KnownPeers,
  Summaries,
  type SummariesOptions,
  type SummaryRequest,
} from "../../../src/peers/directory/index.ts";
import type { PeerAnswer } from "../../../src/peers/index.ts";
import { KeyFilterBuilder } from "../../../src/peers/wire/index.ts";
import { ManualClock } from "../../support/index.ts";
import { announcementOf } from "./announcements.ts";

const NAMESPACE = new Uint8Array(32).fill(0xab);
const OTHER = new Uint8Array(32).fill(0xcd);
const [A, B] = ["a", "b"] as WorkerId[] as [WorkerId, WorkerId];
const EVERY_MS = 1_000;
/** Size of the smallest summary. */
const BYTES = new KeyFilterBuilder(1).done().bytes.length;

/** Eight blocks whose keys differ in each byte. */
const keyOf = (n: number) => new Uint8Array(32).map((_, i) => n * 32 + i);

type Answers = (worker: WorkerId, request: SummaryRequest) => PeerAnswer | null;

function world(answers: Answers, over: Partial<SummariesOptions> = {}) {
  const clock = new ManualClock();
  const members = new KnownPeers({ self: "self" as WorkerId, clock });
  const asked: string[] = [];
  const lines: string[] = [];
  const summaries = new Summaries({
    members,
    clock,
    everyMs: EVERY_MS,
    log: (_, text) => void lines.push(text),
    mayAsk: () => true,
    call: async (worker, request) => {
      asked.push(`${worker} ${request.namespace.toHex().slice(0, 2)} ${request.known}`);
      return answers(worker, request);
    },
    namespaces: () => [NAMESPACE],
    ...over,
  });
  const announce = (name: string, namespaces: string[] | null = null, incarnation = 1n) =>
    members.heard(announcementOf(name, { namespaces, incarnation, everyMs: 300_000 }));
  const holders = (n: number, namespace = NAMESPACE) =>
    summaries.holders(namespace, keyOf(n), 0) as readonly string[];
  const round = () => clock.advanceAsync(EVERY_MS);
  const settle = () => clock.advanceAsync(1);
  return {
    ...{ clock, members, summaries, asked, lines, announce, holders, round, settle },
    [Symbol.asyncDispose]: () => summaries[Symbol.asyncDispose](),
  };
}

function has(version: bigint, ...blocks: number[]): PeerAnswer {
  const builder = new KeyFilterBuilder(blocks.length);
  for (const n of blocks) builder.add(keyOf(n));
  return { op: "summary", version, filter: builder.done().bytes };
}
const UNCHANGED: PeerAnswer = { op: "summary", version: 5n, filter: null };

describe("peers' summaries", () => {
  test("name the peers that have the block as soon as a peer is known", async () => {
    await using it = world((worker) => (worker === A ? has(5n, 1, 2) : has(7n, 2, 3)));
    expect(it.holders(1)).toEqual([]);
    it.announce("a");
    it.announce("b");
    await it.settle();
    expect([it.holders(1), it.holders(3), it.holders(4)]).toEqual([["a"], ["b"], []]);
    expect(it.holders(2).toSorted()).toEqual(["a", "b"]);
    expect(it.holders(1, OTHER)).toEqual([]);
    expect(it.summaries.stats()).toMatchObject({
      peers: 2,
      summaries: 2,
      bytes: 2 * BYTES,
      fetched: 2,
    });
  });

  test("are only fetched if they have changed", async () => {
    let version = 5n;
    await using it = world((_, { known }) => (known === version ? UNCHANGED : has(version, 1)));
    it.announce("a");
    await it.settle();
    await it.round();
    version = 6n;
    await it.round();
    expect(it.asked).toEqual(["a ab 0", "a ab 5", "a ab 5"]);
    expect(it.holders(1)).toEqual(["a"]);
    expect(it.summaries.stats().fetched).toBe(2);
  });

  test("are fetched at once for a namespace that is wanted for the first time", async () => {
    const namespaces: Uint8Array[] = [];
    await using it = world(() => has(5n, 1), { namespaces: () => namespaces });
    it.announce("a");
    await it.settle();
    namespaces.push(NAMESPACE);
    expect(it.holders(1)).toEqual([]);
    await it.settle();
    expect(it.holders(1)).toEqual(["a"]);
    for (let i = 0; i < 100; i++) it.holders(4);
    await it.settle();
    expect(it.asked).toHaveLength(1);
  });

  test("are not fetched for a namespace that the peer does not announce", async () => {
    const both = { namespaces: () => [NAMESPACE, OTHER] };
    await using it = world(() => has(5n, 1), both);
    it.announce("a", [NAMESPACE.toHex()]);
    await it.settle();
    expect(it.asked).toEqual(["a ab 0"]);
    it.announce("a", []);
    await it.round();
    expect(it.holders(1)).toEqual([]);
  });

  test("a peer that lacked a block is not offered for that block for a while", async () => {
    await using it = world((_, { known }) => (known === 0n ? has(5n, 1, 2) : UNCHANGED));
    it.announce("a");
    await it.settle();
    it.summaries.wasWrong(A, NAMESPACE, keyOf(1));
    expect([it.holders(1), it.holders(2)]).toEqual([[], ["a"]]);
    await it.clock.advanceAsync(30_000, 1_000);
    expect(it.holders(1)).toEqual([]);
    await it.clock.advanceAsync(31_000, 1_000);
    expect(it.holders(1)).toEqual(["a"]);
  });

  test("replace earlier false positives", async () => {
    let version = 5n;
    await using it = world(() => has(version, 1));
    it.announce("a");
    await it.settle();
    it.summaries.wasWrong(A, NAMESPACE, keyOf(1));
    version = 6n;
    await it.round();
    expect(it.holders(1)).toEqual(["a"]);
  });

  test("are discarded when the peer leaves or restarts", async () => {
    const answers = [has(5n, 1), has(5n, 2)];
    await using it = world(() => answers.shift() ?? null);
    it.announce("a");
    await it.settle();
    it.announce("a", null, 2n);
    expect(it.holders(1)).toEqual([]);
    await it.settle();
    expect(it.asked).toEqual(["a ab 0", "a ab 0"]);
    expect(it.holders(2)).toEqual(["a"]);
    it.members.left({ worker: A, incarnation: 2n });
    expect(it.holders(2)).toEqual([]);
    expect(it.summaries.stats()).toMatchObject({ peers: 0, bytes: 0 });
  });

  test("are discarded after several failures, and known again with the first answer", async () => {
    let isDown = false;
    await using it = world(() => (isDown ? null : has(5n, 1)));
    it.announce("a");
    await it.settle();
    isDown = true;
    await it.clock.advanceAsync(4 * EVERY_MS, EVERY_MS);
    expect(it.holders(1)).toEqual(["a"]);
    await it.round();
    expect(it.holders(1)).toEqual([]);
    isDown = false;
    await it.round();
    expect(it.holders(1)).toEqual(["a"]);
  });

  test("are not fetched while the breaker is open, and are fetched afterwards", async () => {
    let isOpen = false;
    await using it = world(() => has(5n, 1), { mayAsk: () => !isOpen });
    it.announce("a");
    await it.settle();
    isOpen = true;
    await it.clock.advanceAsync(60 * EVERY_MS, EVERY_MS);
    expect([it.asked.length, it.holders(1)]).toEqual([1, ["a"]]);
    isOpen = false;
    await it.round();
    expect(it.asked).toHaveLength(2);
  });

  test("are empty for a namespace that the peer refuses", async () => {
    const answers: PeerAnswer[] = [has(5n, 1), { op: "refused", why: "not served" }];
    await using it = world(() => answers.shift() ?? null);
    it.announce("a");
    await it.settle();
    await it.round();
    expect(it.holders(1)).toEqual([]);
  });

  test("that are invalid or too large are discarded and logged", async () => {
    const nonsense: PeerAnswer = { op: "summary", version: 1n, filter: new Uint8Array() };
    await using it = world((worker) => (worker === A ? nonsense : has(1n, 1, 2, 3)), {
      bytesMax: BYTES - 1,
    });
    it.announce("a");
    it.announce("b");
    await it.settle();
    expect(it.summaries.stats()).toMatchObject({ summaries: 0, bytes: 0 });
    expect(it.lines).toHaveLength(2);
  });

  test("name some of many holders, rotated from block to block", async () => {
    await using it = world(() => has(1n, 1, 2, 3, 4));
    for (let i = 0; i < 40; i++) it.announce(`w${i}`);
    await it.settle();
    const first = [1, 2, 3, 4].map((n) => it.holders(n)[0]);
    expect(it.holders(1)).toHaveLength(8);
    const blocks = Array.from({ length: 8 }, (_, i) => {
      const key = keyOf(1);
      key[31] = i;
      return it.summaries.holders(NAMESPACE, key, 0)[0];
    });
    expect(new Set([...first, ...blocks]).size).toBe(8);
  });

  test("ignore an answer that arrives after the peer left", async () => {
    const answer = Promise.withResolvers<PeerAnswer | null>();
    await using it = world(() => null, { call: () => answer.promise });
    it.announce("b");
    await it.settle();
    it.members.left({ worker: B, incarnation: 1n });
    answer.resolve(has(5n, 1));
    await it.settle();
    expect(it.holders(1)).toEqual([]);
    expect(it.summaries.stats()).toMatchObject({ peers: 0, bytes: 0 });
  });
});
