import { expect, test } from "bun:test";
import fc from "fast-check";
import { describeNative, waitFor } from "../../support/index.ts";
import { placesFor, pullPlaces } from "./contract-kit.ts";
import { anyPull, expected, stock } from "./pull-scenarios.ts";
import { StreamPair } from "./stream-kit.ts";

const scenario = fc.record({
  pulls: fc.array(anyPull, { minLength: 1, maxLength: 4 }),
  /** Transfers without a free place, counted over all transfers. */
  full: fc.nat({ max: 3 }),
  announcedMax: fc.constantFrom(1, 3, 64),
  lentMax: fc.constantFrom(1, 2, 8),
});

describeNative("random pulls over a stream transport", () => {
  test("each item is answered at most once, correctly, and nothing is left behind", async () => {
    await fc.assert(
      fc.asyncProperty(scenario, async ({ pulls, full, announcedMax, lentMax }) => {
        await using pair = await StreamPair.make(
          { limits: { lentMax } },
          { limits: { announcedMax } },
        );
        const { server } = pair.serverHost;
        const asked = stock(server, pulls);
        pair.network.full = full;
        await using connection = await pair.connection();
        const all = placesFor(asked.flat());
        let at = 0;
        const outcomes = await Promise.all(
          pulls.map(async ({ items, cancelAfter }, number) => {
            const places = all.slice(at, at + items.length);
            at += items.length;
            const abort = new AbortController();
            let heard = 0;
            const onBytes = () => void (++heard > (cancelAfter ?? 99) && abort.abort());
            const outcome = await pullPlaces(connection, places, { signal: abort.signal, onBytes });
            return { outcome, places, asked: asked[number]!, pull: pulls[number]! };
          }),
        );
        let busy = 0;
        for (const { outcome, places, asked: items, pull: wanted } of outcomes) {
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
            expect(pair.client.region.firstWrong(offset, bytes, own)).toBeNull();
          }
        }
        expect(busy).toBeLessThanOrEqual(full);
        expect(connection.fault).toBeNull();
        await waitFor(() => server.lent === 0 && server.serving === 0);
        expect(pair.network.connections.map(({ announced }) => announced)).toEqual([0, 0]);
        expect(server.releasedTwice).toBe(0);
      }),
      { numRuns: 60 },
    );
  });
});
