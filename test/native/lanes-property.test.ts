import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { CIPHERS } from "../../src/native/index.ts";
import { describeNative } from "../support/native.ts";
import { waitFor } from "../support/wait.ts";
import { type Ends, HANG_MS, MIB, openPair } from "./lanes-kit.ts";

const SPAN_BYTES = 2 * MIB;
const SPANS = 12;
/** Written by the owner to a span as soon as it is released. */
const MARK = 99n;

/** When and by which side a transfer is cancelled. */
const fate = fc.record({
  bytes: fc.integer({ min: 1, max: SPAN_BYTES }),
  sender: fc.constantFrom("no", "at once", "in the middle"),
  receiver: fc.constantFrom("no", "at once", "in the middle"),
});
type Fate = typeof fate extends fc.Arbitrary<infer T> ? T : never;

const run = fc.record({
  lanes: fc.integer({ min: 1, max: 4 }),
  threads: fc.integer({ min: 1, max: 2 }),
  fates: fc.array(fate, { minLength: 1, maxLength: SPANS }),
  /** The session ends after this many outcomes; 100 for never. */
  endAfter: fc.constantFrom(0, 1, 3, 100, 100, 100),
});

/** Moves one block. Each owner marks its span when its promise has resolved. */
async function live(ends: Ends, number: number, { bytes, sender, receiver }: Fate) {
  const { from, to } = ends;
  const at = number * SPAN_BYTES;
  from.arena.fill(at, bytes, BigInt(number));
  const checksum = from.arena.checksum(at, bytes);
  const received = ends.receiver.receive(number, at, bytes).then((outcome) => {
    const wrong = outcome.ok ? to.arena.firstWrong(at, bytes, BigInt(number)) : null;
    to.arena.fill(at, SPAN_BYTES, MARK);
    return { outcome, wrong };
  });
  const sent = ends.sender.send(number, at, bytes).then((outcome) => {
    from.arena.fill(at, SPAN_BYTES, MARK);
    return outcome;
  });
  if (sender === "at once") ends.sender.cancel(number);
  if (receiver === "at once") ends.receiver.cancel(number);
  if ([sender, receiver].includes("in the middle")) {
    let isOver = false;
    void Promise.race([received, sent]).then(() => {
      isOver = true;
    });
    await waitFor(() => isOver || ends.receiver.arrived(number) > 0, HANG_MS);
    if (sender === "in the middle") ends.sender.cancel(number);
    if (receiver === "in the middle") ends.receiver.cancel(number);
  }
  const [{ outcome, wrong }, out] = await Promise.all([received, sent]);
  expect(wrong).toBe(null);
  if (outcome.ok) expect(outcome.checksum).toBe(checksum);
  return { received: outcome, sent: out };
}

describeNative("transfers cancelled at any time", () => {
  describe.each([...CIPHERS])("%s", (cipher) => {
    test("deliver correct bytes or none, and return spans to their owners", async () => {
      await fc.assert(
        fc.asyncProperty(run, async ({ lanes, threads, fates, endAfter }) => {
          await using pair = await openPair(cipher, lanes, { threads, bytes: SPANS * SPAN_BYTES });
          let over = 0;
          const lives = fates.map(async (chosen, number) => {
            const ended = await live(pair, number, chosen);
            if (++over === endAfter) await pair.receiver[Symbol.asyncDispose]();
            return ended;
          });
          if (endAfter === 0) await pair.sender[Symbol.asyncDispose]();
          for (const [i, { received, sent }] of (await Promise.all(lives)).entries()) {
            const { sender, receiver } = fates[i]!;
            const isCancelled = sender !== "no" || receiver !== "no";
            if (endAfter === 100 && !isCancelled)
              expect([received.ok, sent.ok]).toEqual([true, true]);
            const allowed = ["cancelled", "closed", "broken"];
            for (const outcome of [received, sent]) {
              if (!outcome.ok) expect(allowed).toContain(outcome.fault);
            }
            expect(pair.from.arena.firstWrong(i * SPAN_BYTES, SPAN_BYTES, MARK)).toBe(null);
            expect(pair.to.arena.firstWrong(i * SPAN_BYTES, SPAN_BYTES, MARK)).toBe(null);
          }
        }),
        { seed: 7, numRuns: 25 },
      );
    });
  });
});
