import { expect, test } from "bun:test";
import fc from "fast-check";
import type { ItemResult } from "../../../src/peers/index.ts";
import { describeNative, waitFor } from "../../support/index.ts";
import { placesFor, pullPlaces } from "./contract-kit.ts";
import { PORT } from "./plain-rdma.ts";
import { PlainPair } from "./rdma-plain-kit.ts";

type Answer = "block" | "absent" | "busy" | "nothing";

interface Item {
  readonly bytes: number;
  /** What its place has more than the block needs. */
  readonly spare: number;
  readonly answer: Answer;
}

interface Pull {
  readonly items: readonly Item[];
  /** It is given up after so many answers; null: never. */
  readonly cancelAfter: number | null;
}

const item: fc.Arbitrary<Item> = fc.record({
  bytes: fc.integer({ min: 1, max: 200_000 }),
  spare: fc.constantFrom(0, 0, 1, 5_000),
  answer: fc.constantFrom<Answer>("block", "block", "block", "absent", "busy", "nothing"),
});
const pull: fc.Arbitrary<Pull> = fc.record({
  items: fc.array(item, { minLength: 1, maxLength: 12 }),
  cancelAfter: fc.option(fc.nat({ max: 6 })),
});
const scenario = fc.record({
  pulls: fc.array(pull, { minLength: 1, maxLength: 4 }),
  /** So many loans, and reads, find no room. */
  fullLoans: fc.nat({ max: 3 }),
  fullReads: fc.nat({ max: 3 }),
  rails: fc.constantFrom(1, 2),
  lentMax: fc.constantFrom(1, 2, 8),
});

/** What a pull that nobody gives up comes to, item by item; the first that is left out ends it. */
function expected(items: readonly Item[]): (ItemResult["kind"] | undefined)[] {
  const end = items.findIndex(({ answer }) => answer === "nothing");
  return items.map(({ answer }, index) => {
    if (end >= 0 && index >= end) return undefined;
    if (answer === "block") return "came";
    return answer === "nothing" ? undefined : answer;
  });
}

/** Puts the pulls' blocks where they are asked for, and lets the holder answer as they say. */
function stock(pair: PlainPair, pulls: readonly Pull[]) {
  const { server } = pair.holder;
  const answers = new Map<string, Answer>();
  let seed = 0;
  const asked = pulls.map(({ items }) =>
    items.map(({ bytes, spare, answer }) => {
      const own = server.put(++seed, bytes);
      answers.set(own.digest.toHex(), answer);
      return { ...own, bytesMax: bytes + spare, seed };
    }),
  );
  server.onServe = (served, { digest }) => {
    const { index } = served;
    const answer = answers.get(digest.toHex());
    if (answer === "nothing") return undefined;
    if (answer === "absent") return { index, kind: "absent" };
    return answer === "busy" ? { index, kind: "busy", retryAfterMs: 9 } : served;
  };
  return asked;
}

describeNative("pulls of an RDMA link, whatever happens", () => {
  test("each item is answered at most once, rightly, and nothing stays behind", async () => {
    await fc.assert(
      fc.asyncProperty(scenario, async ({ pulls, fullLoans, fullReads, rails, lentMax }) => {
        await using pair = await PlainPair.make({ rails, limits: { lentMax } }, { rails });
        const { server } = pair.holder;
        const asked = stock(pair, pulls);
        const second = { ...PORT, index: 1, gid: PORT.gid.with(15, 2) };
        pair.fabric.ports = rails === 1 ? [PORT] : [PORT, second];
        Object.assign(pair.fabric, { fullLoans, fullReads });
        await using link = await pair.link();
        const all = placesFor(asked.flat());
        let at = 0;
        const outcomes = await Promise.all(
          pulls.map(async ({ items, cancelAfter }, number) => {
            const places = all.slice(at, at + items.length);
            at += items.length;
            const abort = new AbortController();
            let heard = 0;
            const onBytes = () => void (++heard > (cancelAfter ?? 99) && abort.abort());
            const outcome = await pullPlaces(link, places, { signal: abort.signal, onBytes });
            return { outcome, places, asked: asked[number]!, wanted: pulls[number]! };
          }),
        );
        let busy = 0;
        for (const { outcome, places, asked: items, wanted } of outcomes) {
          const { fault, results } = outcome;
          const right = expected(wanted.items);
          if (wanted.cancelAfter === null) expect(fault === null).toBe(!right.includes(undefined));
          for (const [index, result] of results.entries()) {
            if (result === undefined) continue;
            if (result.kind === "busy" && right[index] === "came") busy++;
            else expect(result.kind).toBe(right[index]!);
            if (result.kind !== "came") continue;
            const { offset } = places[index]!;
            const { bytes } = result.header;
            expect(bytes).toBe(wanted.items[index]!.bytes);
            const own = BigInt(items[index]!.seed);
            expect(pair.asker.region.firstWrong(offset, bytes, own)).toBeNull();
          }
        }
        expect(busy).toBeLessThanOrEqual(fullLoans + fullReads);
        expect(link.fault).toBeNull();
        await waitFor(() => server.lent === 0 && server.serving === 0);
        const links = [...pair.fabric.links.values()];
        expect(links).toHaveLength(2 * rails);
        expect(links.every(({ lent, reading }) => lent + reading === 0)).toBe(true);
        expect(server.releasedTwice).toBe(0);
      }),
      { numRuns: 60 },
    );
  }, 60_000);
});
