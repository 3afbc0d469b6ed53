import { expect, test } from "bun:test";
import fc from "fast-check";
import { describeNative, waitFor } from "../../support/index.ts";
import { placesFor, pullPlaces } from "./contract-kit.ts";
import { PORT } from "./plain-rdma.ts";
import { anyPull, expected, stock } from "./pull-scenarios.ts";
import { PlainPair } from "./rdma-plain-kit.ts";

const scenario = fc.record({
  pulls: fc.array(anyPull, { minLength: 1, maxLength: 4 }),
  /** Number of exposures, and of reads, that are refused. */
  fullLoans: fc.nat({ max: 3 }),
  fullReads: fc.nat({ max: 3 }),
  rails: fc.constantFrom(1, 2),
  lentMax: fc.constantFrom(1, 2, 8),
});

describeNative("random pulls over RDMA", () => {
  test("each item is answered at most once, correctly, and nothing is left behind", async () => {
    await fc.assert(
      fc.asyncProperty(scenario, async ({ pulls, fullLoans, fullReads, rails, lentMax }) => {
        await using pair = await PlainPair.make({ rails, limits: { lentMax } }, { rails });
        const { server } = pair.serverHost;
        const asked = stock(pair.serverHost.server, pulls);
        const second = { ...PORT, index: 1, gid: PORT.gid.with(15, 2) };
        pair.fabric.ports = rails === 1 ? [PORT] : [PORT, second];
        Object.assign(pair.fabric, { fullLoans, fullReads });
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
            expect(pair.client.region.firstWrong(offset, bytes, own)).toBeNull();
          }
        }
        expect(busy).toBeLessThanOrEqual(fullLoans + fullReads);
        expect(connection.fault).toBeNull();
        await waitFor(() => server.lent === 0 && server.serving === 0);
        const connections = [...pair.fabric.connections.values()];
        expect(connections).toHaveLength(2 * rails);
        expect(connections.every(({ lent, reading }) => lent + reading === 0)).toBe(true);
        expect(server.releasedTwice).toBe(0);
      }),
      { numRuns: 60 },
    );
  });
});
