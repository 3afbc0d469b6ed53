import { describe, expect, test } from "bun:test";
import { type Cipher, LaneError } from "../../src/native/index.ts";
import { describeNative } from "../support/native.ts";
import { honest, type Meddler, type PassingRecord, RecordProxy } from "../support/record-proxy.ts";
import { HANG_MS, HOST, MIB, newSession, openPair, openSide } from "./lanes-kit.ts";

const BYTES = MIB;
const SEALED = ["aegis-128l", "aes-128-gcm"] as const;

/**
 * Sends blocks over two lanes through a tampering proxy. Returns the outcomes of the blocks and of
 * both ends.
 */
async function past(cipher: Cipher, meddler: Meddler, blocks = 4) {
  let proxy: RecordProxy | null = null;
  await using pair = await openPair(cipher, 2, {}, (port) => {
    proxy = new RecordProxy(port, cipher !== "none", meddler);
    return proxy.listen();
  });
  await using _ = proxy!;
  const { from, to, sender, receiver } = pair;
  const outcomes = await Promise.all(
    Array.from({ length: blocks }, async (_, i) => {
      from.arena.fill(i * BYTES, BYTES, BigInt(i));
      const received = receiver.receive(i, i * BYTES, BYTES);
      void sender.send(i, i * BYTES, BYTES);
      const outcome = await received;
      if (outcome.ok) expect(to.arena.firstWrong(i * BYTES, BYTES, BigInt(i))).toBe(null);
      return outcome.ok ? "ok" : outcome.fault;
    }),
  );
  if (outcomes.every((outcome) => outcome === "ok")) return { outcomes, ended: null };
  const ended = await receiver.ended;
  await sender.ended;
  return { outcomes, ended };
}

/** Modifies the third data record of the first lane. */
function meddling(how: (record: PassingRecord) => readonly Uint8Array[] | "cut"): Meddler {
  return (record) => (record.lane === 0 && record.number === 3 ? how(record) : honest(record));
}

function flipped(bytes: Uint8Array, at: number): Uint8Array {
  const changed = Uint8Array.from(bytes);
  changed[at]! ^= 0x40;
  return changed;
}

/** Replaces a record by another one that is sent later. */
function swapping(isHeld: (record: PassingRecord) => boolean): Meddler {
  let held: Uint8Array | null = null;
  return (record) => {
    if (held === null && isHeld(record)) {
      held = record.bytes;
      return [];
    }
    if (held === null || record.number < 4) return honest(record);
    const first = held;
    held = new Uint8Array(0);
    return first.length === 0 ? honest(record) : [record.bytes, first];
  };
}

const FORGERIES: Record<string, () => Meddler> = {
  "a changed version": () => meddling(({ bytes }) => [flipped(bytes, 0)]),
  "a changed kind": () => meddling(({ bytes }) => [flipped(bytes, 1)]),
  "a changed transfer": () => meddling(({ bytes }) => [flipped(bytes, 8)]),
  "a changed offset": () => meddling(({ bytes }) => [flipped(bytes, 18)]),
  "a changed first byte": () => meddling(({ bytes }) => [flipped(bytes, 24)]),
  "a changed last byte": () => meddling(({ bytes }) => [flipped(bytes, bytes.length - 17)]),
  "a changed tag": () => meddling(({ bytes }) => [flipped(bytes, bytes.length - 1)]),
  "a shorter length": () => meddling(({ bytes }) => [flipped(bytes, 5)]),
  "a length beyond all": () => meddling(({ bytes }) => [flipped(bytes, 7)]),
  "a repeated record": () => meddling(({ bytes }) => [bytes, bytes]),
  "a record left out": () => meddling(() => []),
  "a record cut short": () => meddling(({ bytes }) => [bytes.subarray(0, bytes.length - 9)]),
  "two in the wrong order": () => swapping(({ lane, number }) => lane === 0 && number === 3),
  "a byte between": () => meddling(({ bytes }) => [new Uint8Array(1), bytes]),
  "a record of the other lane": () => {
    let first: PassingRecord | null = null;
    return (record) => {
      if (record.number === 0) return honest(record);
      first ??= record;
      return honest(record.lane === first.lane ? record : first);
    };
  },
};

describeNative("lanes through a tampering proxy", () => {
  describe.each([...SEALED])("%s", (cipher) => {
    test("that passes everything unchanged", async () => {
      const { outcomes, ended } = await past(cipher, honest);
      expect(outcomes).toEqual(["ok", "ok", "ok", "ok"]);
      expect(ended).toBe(null);
    });

    test.each(Object.keys(FORGERIES))("%s ends the session as forged", async (name) => {
      const { outcomes, ended } = await past(cipher, FORGERIES[name]!());
      expect(ended).toBe("forged");
      expect(outcomes).toContain("forged");
      expect(outcomes.every((outcome) => outcome === "ok" || outcome === "forged")).toBe(true);
    });

    test("a connection that ends in the middle is broken", async () => {
      const { outcomes, ended } = await past(
        cipher,
        meddling(() => "cut"),
      );
      expect(ended).toBe("broken");
      expect(outcomes).toContain("broken");
    });

    test("a record of another session is forged", async () => {
      const others: Uint8Array[] = [];
      await past(cipher, (record) => {
        if (record.number === 3) others.push(record.bytes);
        return honest(record);
      });
      const { ended } = await past(
        cipher,
        meddling(() => [others[0]!]),
      );
      expect(ended).toBe("forged");
    });

    test("a changed welcome lets no session open", async () => {
      await using from = openSide();
      await using to = openSide();
      const port = from.lanes.listen(HOST, 0);
      await using proxy = new RecordProxy(port, true, ({ bytes }) => [flipped(bytes, 30)]);
      const session = newSession(cipher, 1);
      const expected = from.lanes.expect(session, HANG_MS);
      const dialled = to.lanes.dial(session, HOST, await proxy.listen(), HANG_MS);
      const refused = await dialled.catch((error: unknown) => error);
      expect(refused).toBeInstanceOf(LaneError);
      expect((refused as LaneError).fault).toBe("forged");
      expect(await (await expected).ended).toBe("broken");
    });
  });

  test("without encryption, an impossible record ends the session", async () => {
    const { ended } = await past(
      "none",
      meddling(({ bytes }) => [flipped(bytes, 0)]),
    );
    expect(ended).toBe("forged");
    const skipped = await past(
      "none",
      meddling(() => []),
    );
    expect(skipped.ended).toBe("forged");
  });
});
