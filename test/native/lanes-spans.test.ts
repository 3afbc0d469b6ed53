import { describe, expect, test } from "bun:test";
import { CIPHERS, type Cipher } from "../../src/native/index.ts";
import { GateProxy } from "../support/gate-proxy.ts";
import { describeNative } from "../support/native.ts";
import { waitFor } from "../support/wait.ts";
import { HANG_MS, MIB, move, openPair, type Pair } from "./lanes-kit.ts";

const BYTES = 48 * MIB;
const BEHIND = 64 * MIB;
/** In the middle of the third record. */
const GATE_BYTES = 600_000;

/** A transfer that is stalled in the middle of a record on both sides. */
async function withStuck(
  cipher: Cipher,
  use: (pair: Pair, gate: GateProxy) => Promise<void>,
): Promise<void> {
  let gate: GateProxy | null = null;
  await using pair = await openPair(cipher, 1, { bytes: 80 * MIB, socketBytes: 65_536 }, (port) => {
    gate = new GateProxy(port, GATE_BYTES);
    return gate.listen();
  });
  await using proxy: GateProxy = gate!;
  await use(pair, proxy);
}

describeNative("the spans of lanes", () => {
  describe.each([...CIPHERS])("%s", (cipher) => {
    test("belong to the sender again once a cancelled transfer has resolved", async () => {
      await withStuck(cipher, async (pair, gate) => {
        const { from, to, sender, receiver } = pair;
        from.arena.fill(0, BYTES, 1n);
        const received = receiver.receive(1, 0, BYTES);
        const sent = sender.send(1, 0, BYTES);
        await waitFor(() => gate.isShut && receiver.arrived(1) > 0, HANG_MS);
        sender.cancel(1);
        expect(await sent).toEqual({ ok: false, fault: "cancelled" });
        const arrived = receiver.arrived(1);
        expect(arrived).toBeLessThan(BYTES);
        // The interrupted record continues from a copy.
        from.arena.fill(0, BYTES, 2n);
        gate.open();
        expect(await received).toEqual({ ok: false, fault: "cancelled" });
        from.arena.fill(0, BYTES, 1n);
        const wrong = to.arena.firstWrong(0, BYTES, 1n);
        expect(wrong).toBeGreaterThan(arrived);
        await move(pair, 2, BEHIND, MIB, 3n);
      });
    });

    test("belong to the receiver again once a cancelled transfer has resolved", async () => {
      await withStuck(cipher, async (pair, gate) => {
        const { from, to, sender, receiver } = pair;
        from.arena.fill(0, BYTES, 1n);
        const received = receiver.receive(1, 0, BYTES);
        const sent = sender.send(1, 0, BYTES);
        await waitFor(() => gate.isShut && receiver.arrived(1) > 0, HANG_MS);
        receiver.cancel(1);
        expect(await received).toEqual({ ok: false, fault: "cancelled" });
        to.arena.fill(0, BYTES, 2n);
        gate.open();
        expect(await sent).toEqual({ ok: true });
        await move(pair, 2, BEHIND, MIB, 3n);
        expect(to.arena.firstWrong(0, BYTES, 2n)).toBe(null);
      });
    });

    test("are free when a session ends during a transfer", async () => {
      await withStuck(cipher, async (pair, gate) => {
        const { from, to, sender, receiver } = pair;
        const received = receiver.receive(1, 0, BYTES);
        const sent = sender.send(1, 0, BYTES);
        await waitFor(() => gate.isShut && receiver.arrived(1) > 0, HANG_MS);
        await Promise.all([sender[Symbol.asyncDispose](), receiver[Symbol.asyncDispose]()]);
        expect(await received).toEqual({ ok: false, fault: "closed" });
        expect(await sent).toEqual({ ok: false, fault: "closed" });
        from.arena.fill(0, BYTES, 1n);
        to.arena.fill(0, BYTES, 2n);
        gate.open();
        expect(to.arena.firstWrong(0, BYTES, 2n)).toBe(null);
      });
    });
  });
});
