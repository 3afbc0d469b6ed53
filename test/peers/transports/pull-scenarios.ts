import fc from "fast-check";
import type { ItemResult } from "../../../src/peers/index.ts";
import type { RegionServer } from "../../support/region-server.ts";

/** The server's answer to one item. */
type Answer = "block" | "absent" | "busy" | "nothing";

interface Item {
  readonly bytes: number;
  /** Bytes of its place beyond the block. */
  readonly spare: number;
  readonly answer: Answer;
}

/** One request of a scenario. */
interface Pull {
  readonly items: readonly Item[];
  /** Cancelled after this many answers; null: never. */
  readonly cancelAfter: number | null;
}

const item: fc.Arbitrary<Item> = fc.record({
  bytes: fc.integer({ min: 1, max: 200_000 }),
  spare: fc.constantFrom(0, 0, 0, 1, 5_000),
  answer: fc.constantFrom<Answer>("block", "block", "block", "absent", "busy", "nothing"),
});

/** Random pulls. */
export const anyPull: fc.Arbitrary<Pull> = fc.record({
  items: fc.array(item, { minLength: 1, maxLength: 12 }),
  cancelAfter: fc.option(fc.nat({ max: 6 })),
});

/** Puts the pulls' blocks on the server, which answers as the pulls say. */
export function stock(server: RegionServer, pulls: readonly Pull[]) {
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

/** The expected results of a pull that is not cancelled; the first item left out ends it. */
export function expected(items: readonly Item[]): (ItemResult["kind"] | undefined)[] {
  const end = items.findIndex(({ answer }) => answer === "nothing");
  return items.map(({ answer }, index) => {
    if (end >= 0 && index >= end) return undefined;
    if (answer === "block") return "came";
    return answer === "nothing" ? undefined : answer;
  });
}
