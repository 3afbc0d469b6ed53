import { expect, test } from "bun:test";
import fc from "fast-check";
import { pin } from "../../../src/control/client/index.ts";
import { kit } from "./kit.ts";

/** What the network does to one message and its answer. */
const fate = fc.record({
  isLost: fc.boolean(),
  answers: fc.integer({ min: 0, max: 2 }),
  delayMs: fc.integer({ min: 0, max: 3_000 }),
});

test("lost, doubled, late, out of order: one effect, and each its own answer", async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(fate, { minLength: 1, maxLength: 20 }),
      fc.integer({ min: 1, max: 6 }),
      async (fates, commands) => {
        await using fleet = await kit("router");
        const worker = await fleet.worker("node-1");
        let nth = 0;
        worker.behave = ({ command }, answer) => {
          const { isLost, answers, delayMs } = fates[nth++] ?? HEALTHY;
          if (isLost) return;
          const receipt = worker.carryOut(command);
          for (let copy = 0; copy < answers; copy++) {
            fleet.clock.after(delayMs * (copy + 1), () => answer(receipt));
          }
        };
        const ids = Array.from({ length: commands }, (_, at) => `id-${at}`);
        const results = await Promise.all(
          ids.map((id) =>
            fleet.settle(fleet.client.send("node-1", pin([1], { id }), { deadlineMs: 600_000 })),
          ),
        );
        expect(results.map((result) => result.kind === "receipt" && result.receipt.id)).toEqual(
          ids,
        );
        expect([...worker.carriedOut].sort()).toEqual(ids);
      },
    ),
    { numRuns: 60 },
  );
});

const HEALTHY = { isLost: false, answers: 1, delayMs: 0 };
