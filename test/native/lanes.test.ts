import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { CIPHERS } from "../../src/native/index.ts";
import { describeNative } from "../support/native.ts";
import { waitFor } from "../support/wait.ts";
import { HANG_MS, MIB, move, openPair } from "./lanes-kit.ts";

const RECORD_BYTES = 256 * 1024;

describeNative("lanes", () => {
  describe.each([...CIPHERS])("%s", (cipher) => {
    test("carry blocks of any length to their places", async () => {
      await using pair = await openPair(cipher, 2);
      const lengths = [1, 31, 4096, 65_537, RECORD_BYTES, RECORD_BYTES + 1, MIB + 7, 4 * MIB];
      let offset = 0;
      await Promise.all(
        lengths.map((bytes, i) => {
          const at = offset;
          offset += bytes + 100;
          return move(pair, i, at, bytes, BigInt(i));
        }),
      );
    });

    test("carry any blocks in parallel over any number of lanes and threads", async () => {
      const shape = fc.record({
        lanes: fc.integer({ min: 1, max: 5 }),
        threads: fc.integer({ min: 1, max: 3 }),
        lengths: fc.array(fc.integer({ min: 1, max: 600_000 }), { minLength: 1, maxLength: 20 }),
      });
      await fc.assert(
        fc.asyncProperty(shape, async ({ lanes, threads, lengths }) => {
          await using pair = await openPair(cipher, lanes, { threads });
          let at = 0;
          const moves = lengths.map((bytes, i) => {
            const offset = at;
            at += bytes;
            return move(pair, i, offset, bytes, BigInt(i));
          });
          await Promise.all(moves);
        }),
        { seed: 3, numRuns: 8 },
      );
    });

    test("change keys during a transfer", async () => {
      await using pair = await openPair(cipher, 2, { rekeyBytes: 300_000 });
      await Promise.all([0, 1, 2].map((i) => move(pair, i, i * 4 * MIB, 4 * MIB, BigInt(i))));
    });

    test("do not delay a small block until the end of a large one", async () => {
      await using pair = await openPair(cipher, 1, { bytes: 80 * MIB });
      const { sender, receiver } = pair;
      const ends: string[] = [];
      const large = receiver.receive(1, 0, 64 * MIB).then(() => ends.push("large"));
      const small = receiver.receive(2, 64 * MIB, 1024).then(() => ends.push("small"));
      void sender.send(1, 0, 64 * MIB);
      void sender.send(2, 64 * MIB, 1024);
      await Promise.all([large, small]);
      expect(ends).toEqual(["small", "large"]);
    });

    test("stop a transfer that the receiver cancels, and carry later ones", async () => {
      await using pair = await openPair(cipher, 1, { bytes: 80 * MIB });
      const { from, to, sender, receiver } = pair;
      from.arena.fill(0, 64 * MIB, 5n);
      const received = receiver.receive(1, 0, 64 * MIB);
      const sent = sender.send(1, 0, 64 * MIB);
      await waitFor(() => receiver.arrived(1) > 0, HANG_MS);
      receiver.cancel(1);
      expect(await received).toEqual({ ok: false, fault: "cancelled" });
      expect(receiver.arrived(1)).toBe(0);
      // The span is not written any more.
      to.arena.fill(0, 64 * MIB, 9n);
      await move(pair, 2, 64 * MIB, MIB, 7n);
      expect(await sent).toEqual({ ok: true });
      expect(to.arena.firstWrong(0, 64 * MIB, 9n)).toBe(null);
    });

    test("stop a transfer that the sender cancels", async () => {
      await using pair = await openPair(cipher, 1, { bytes: 80 * MIB });
      const { sender, receiver } = pair;
      const received = receiver.receive(1, 0, 64 * MIB);
      const sent = sender.send(1, 0, 64 * MIB);
      await waitFor(() => receiver.arrived(1) > 0, HANG_MS);
      sender.cancel(1);
      expect(await sent).toEqual({ ok: false, fault: "cancelled" });
      expect(await received).toEqual({ ok: false, fault: "cancelled" });
      await move(pair, 2, 64 * MIB, MIB, 7n);
    });

    test("report the progress of a transfer", async () => {
      await using pair = await openPair(cipher, 1);
      const { sender, receiver } = pair;
      expect(receiver.arrived(3)).toBe(0);
      const received = receiver.receive(3, 0, 8 * MIB);
      expect(receiver.arrived(3)).toBe(0);
      void sender.send(3, 0, 3 * MIB);
      // Fewer bytes were sent than announced.
      expect(await received).toEqual({ ok: false, fault: "broken" });
      await move(pair, 4, 0, MIB, 1n);
    });

    test("write at most the announced bytes", async () => {
      await using pair = await openPair(cipher, 1);
      const { to, sender, receiver } = pair;
      const announced = 300_000;
      to.arena.fill(announced, 4 * MIB, 6n);
      const received = receiver.receive(1, 0, announced);
      void sender.send(1, 0, 4 * MIB);
      expect(await received).toEqual({ ok: false, fault: "too_long" });
      await move(pair, 2, 8 * MIB, MIB, 1n);
      expect(to.arena.firstWrong(announced, 4 * MIB, 6n)).toBe(null);
    });

    test("drop transfers that were not announced", async () => {
      await using pair = await openPair(cipher, 1);
      expect(await pair.sender.send(77, 0, MIB)).toEqual({ ok: true });
      await move(pair, 78, 0, MIB, 2n);
    });
  });
});
