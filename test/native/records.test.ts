import { describe, expect, test } from "bun:test";
import { createCipheriv } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { loadNative, STATUS } from "../../src/native/index.ts";
import { describeNative } from "../support/native.ts";
import { dataRecord, openRecords, type RecordPlace, sealRecords } from "./records-kit.ts";

const GOLDEN = join(import.meta.dir, "golden/sealed-records.json");
const DOCUMENT = join(import.meta.dir, "../../docs/internals/wire-protocol.md");

const SECRET = Uint8Array.from({ length: 32 }, (_, i) => i);
const ID = Uint8Array.from({ length: 16 }, (_, i) => 0xf0 - i);

/** Three records of one transfer and an abort. The third has its own key. */
const PLAIN = Buffer.concat([
  dataRecord({ transfer: 7, offset: 0, payload: "the first record of a transfer", last: false }),
  dataRecord({ transfer: 7, offset: 30, payload: "the second", last: false }),
  dataRecord({ transfer: 7, offset: 40, payload: "and the last", last: true }),
]);

function placeOf(cipher: RecordPlace["cipher"]): RecordPlace {
  return { id: ID, secret: SECRET, lane: 2, direction: 1, cipher, rekeyBytes: 80 };
}

interface Golden {
  readonly cipher: "aegis_128l" | "aes_128_gcm";
  readonly secret: string;
  readonly session: string;
  readonly lane: number;
  readonly direction: number;
  readonly rekey_bytes: number;
  readonly plain: string;
  readonly sealed: string;
}

/** An independent implementation of docs/internals/wire-protocol.md, record by record. */
function sealByTheBook(plain: Uint8Array, place: RecordPlace): Uint8Array {
  const native = loadNative();
  const words = new DataView(new ArrayBuffer(12));
  words.setUint32(0, place.lane, true);
  words.setUint32(4, place.direction, true);
  words.setUint32(8, 1, true);
  const material = Buffer.concat([place.secret, place.id, new Uint8Array(words.buffer)]);
  let chain = native.blake3DeriveKey("hearth lanes 1: a lane's direction", material);
  let key = new Uint8Array(0);
  let generation = -1;
  const turn = () => {
    const count = new DataView(new ArrayBuffer(8));
    count.setBigUint64(0, BigInt(++generation), true);
    const link = Buffer.concat([chain, new Uint8Array(count.buffer)]);
    key = Uint8Array.from(native.blake3DeriveKey("hearth lanes 1: a generation's key", link));
    chain = native.blake3DeriveKey("hearth lanes 1: the next generation", link);
  };
  turn();
  const sealed: Uint8Array[] = [];
  let used = 0;
  let sequence = 0n;
  for (let at = 0; at < plain.length; ) {
    const header = plain.subarray(at, at + 24);
    const length = new DataView(header.buffer, header.byteOffset).getUint32(4, true);
    const payload = plain.subarray(at + 24, at + 24 + length);
    at += 24 + length;
    if (used > 0 && used + length + 16 > place.rekeyBytes) {
      turn();
      used = 0;
    }
    used += length + 16;
    const nonce = Uint8Array.from(key.subarray(16, 28));
    const view = new DataView(nonce.buffer);
    view.setBigUint64(0, view.getBigUint64(0, true) ^ sequence++, true);
    const cipher = createCipheriv("aes-128-gcm", key.subarray(0, 16), nonce);
    cipher.setAAD(header);
    sealed.push(header, cipher.update(payload), cipher.final(), cipher.getAuthTag());
  }
  return Buffer.concat(sealed);
}

function goldenOf(cipher: Golden["cipher"]): Golden {
  const sealed = sealRecords(placeOf(cipher), PLAIN);
  return {
    cipher,
    ...{ secret: SECRET.toHex(), session: ID.toHex(), lane: 2, direction: 1, rekey_bytes: 80 },
    ...{ plain: Uint8Array.from(PLAIN).toHex(), sealed: (sealed as Uint8Array).toHex() },
  };
}

describeNative("encrypted records", () => {
  test("equal the golden file", () => {
    const made = [goldenOf("aegis_128l"), goldenOf("aes_128_gcm")];
    if (process.env.UPDATE_GOLDEN === "1") writeFileSync(GOLDEN, JSON.stringify(made, null, 2));
    expect(made).toEqual(JSON.parse(readFileSync(GOLDEN, "utf8")) as Golden[]);
  });

  test("equal those of the document", () => {
    const text = readFileSync(DOCUMENT, "utf8").replaceAll(/\s/g, "");
    for (const { sealed } of [goldenOf("aegis_128l"), goldenOf("aes_128_gcm")]) {
      expect(text).toContain(sealed);
    }
  });

  test("equal an independent implementation of the document", () => {
    const sealed = sealRecords(placeOf("aes_128_gcm"), PLAIN);
    expect((sealed as Uint8Array).toHex()).toBe(
      sealByTheBook(PLAIN, placeOf("aes_128_gcm")).toHex(),
    );
  });

  describe.each(["aegis_128l", "aes_128_gcm"] as const)("%s", (cipher) => {
    const sealed = () => sealRecords(placeOf(cipher), PLAIN) as Uint8Array;

    test("decrypt to their content", () => {
      expect(openRecords(placeOf(cipher), sealed())).toEqual(Uint8Array.from(PLAIN));
    });

    test("are rejected with any bit changed", () => {
      const whole = sealed();
      for (let bit = 0; bit < whole.length * 8; bit++) {
        const changed = Uint8Array.from(whole);
        changed[bit >> 3]! ^= 1 << (bit & 7);
        const opened = openRecords(placeOf(cipher), changed);
        // A larger length now exceeds the input.
        expect([STATUS.forged, STATUS.short] as unknown[]).toContain(opened);
      }
    });

    test("are rejected if cut short anywhere except between two", () => {
      const whole = sealed();
      const ends = [0, 70, 120, 172];
      for (let length = 0; length < whole.length; length++) {
        const opened = openRecords(placeOf(cipher), whole.subarray(0, length));
        expect(ends.includes(length) ? opened instanceof Uint8Array : opened).toBe(
          ends.includes(length) ? true : STATUS.short,
        );
      }
    });

    test("are rejected in another order, repeated, or with one missing", () => {
      const whole = sealed();
      const [one, two, three] = [
        [0, 70],
        [70, 120],
        [120, 172],
      ].map(([from, to]) => whole.subarray(from, to)) as [Uint8Array, Uint8Array, Uint8Array];
      for (const order of [[two, one, three], [one, one, two], [one, three], [two], [three, one]]) {
        expect(openRecords(placeOf(cipher), Buffer.concat(order))).toBe(STATUS.forged);
      }
      expect(openRecords(placeOf(cipher), Buffer.concat([one, two, three]))).toHaveLength(124);
    });

    test("are rejected in another place", () => {
      const place = placeOf(cipher);
      const places: RecordPlace[] = [
        { ...place, lane: 3 },
        { ...place, direction: 0 },
        { ...place, cipher: cipher === "aegis_128l" ? "none" : "aegis_128l" },
        { ...place, id: Uint8Array.from(ID).fill(1, 15) },
        { ...place, secret: Uint8Array.from(SECRET).fill(1, 31) },
        { ...place, rekeyBytes: 0 },
      ];
      for (const other of places) expect(openRecords(other, sealed())).toBe(STATUS.forged);
    });
  });
});
