import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { loadNative } from "../../../src/native/index.ts";
import {
  decodeHeader,
  encodeHeader,
  HEADER_BYTES,
  HEADER_FIELDS,
  type HeaderFault,
  type KvbHeader,
} from "../../../src/store/kvb/index.ts";
import { describeNative } from "../../support/index.ts";
import { anyHeader } from "./arbitrary-header.ts";

function encoded(header: KvbHeader): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(HEADER_BYTES).fill(0xcc);
  encodeHeader(header, bytes);
  return bytes;
}

const sample: KvbHeader = {
  digest: new Uint8Array(32).fill(0xd1),
  layer: 7,
  parent: new Uint8Array(32).fill(0xaa),
  namespaceKey: new Uint8Array(32).fill(0x4e),
  payloadBytes: 262_144,
  payloadChecksum: 0x0123_4567_89ab_cdefn,
  mac: null,
  incarnation: 42n,
  sequence: 1000,
  writtenMs: 1_790_000_000_000,
};

/** A header with some bytes replaced and a checksum that fits them. */
function forged(change: (view: DataView) => void, header = sample): Uint8Array {
  const bytes = encoded(header);
  const view = new DataView(bytes.buffer);
  change(view);
  const { at } = HEADER_FIELDS.headerChecksum;
  view.setBigUint64(at, Bun.hash.xxHash3(bytes.subarray(0, at)), true);
  return bytes;
}

function faultOf(bytes: Uint8Array): HeaderFault | null {
  const decoded = decodeHeader(bytes);
  return decoded.ok ? null : decoded.fault;
}

describe("a header", () => {
  test("is read as it was written", () => {
    fc.assert(
      fc.property(anyHeader, (header) => {
        expect(decodeHeader(encoded(header))).toEqual({ ok: true, header });
      }),
    );
  });

  test("has one encoding, whatever was encoded before", () => {
    fc.assert(
      fc.property(anyHeader, anyHeader, (header, other) => {
        const first = encoded(header).toHex();
        encoded(other);
        expect(encoded(header).toHex()).toBe(first);
      }),
    );
  });

  test("is written and read inside larger memory, and shares none of it", () => {
    const memory = new Uint8Array(3 * HEADER_BYTES).fill(0xcc);
    const slot = memory.subarray(HEADER_BYTES, 2 * HEADER_BYTES);
    encodeHeader(sample, slot);
    expect(memory.subarray(0, HEADER_BYTES).every((byte) => byte === 0xcc)).toBe(true);
    expect(memory.subarray(2 * HEADER_BYTES).every((byte) => byte === 0xcc)).toBe(true);
    const decoded = decodeHeader(slot);
    memory.fill(0);
    expect(decoded).toEqual({ ok: true, header: sample });
  });

  test("with any single bit flipped is refused", () => {
    const withMac = { ...sample, mac: new Uint8Array(16).fill(0x3c) };
    for (const header of [sample, { ...sample, parent: null }, withMac]) {
      const bytes = encoded(header);
      let served = 0;
      for (let bit = 0; bit < HEADER_BYTES * 8; bit++) {
        bytes[bit >> 3]! ^= 1 << (bit & 7);
        if (faultOf(bytes) === null) served++;
        bytes[bit >> 3]! ^= 1 << (bit & 7);
      }
      expect(served).toBe(0);
      expect(faultOf(bytes)).toBeNull();
    }
  });

  test("an invalid header is rejected with the reason", () => {
    const bytes = encoded(sample);
    bytes[0] = 0;
    expect(faultOf(bytes)).toBe("magic");
    bytes.set(encoded(sample));
    bytes[HEADER_FIELDS.digest.at] = 0;
    expect(faultOf(bytes)).toBe("checksum");
    expect(faultOf(new Uint8Array(HEADER_BYTES))).toBe("magic");
  });

  const { version, headerBytes, flags, payloadBytes, sequence, writtenMs, mac, reserved } =
    HEADER_FIELDS;
  const lies: [HeaderFault, string, (view: DataView) => void][] = [
    ["version", "version 3", (view) => view.setUint32(version.at, 3, true)],
    ["version", "version 0", (view) => view.setUint32(version.at, 0, true)],
    ["header_length", "8192", (view) => view.setUint32(headerBytes.at, 8192, true)],
    ["flags", "an unknown flag", (view) => view.setUint32(flags.at, 5, true)],
    ["flags", "the flag of a MAC in version 1", (view) => view.setUint32(flags.at, 3, true)],
    ["flags", "a MAC in version 1", (view) => view.setUint8(mac.at, 1)],
    ["flags", "version 2 without a MAC's flag", (view) => view.setUint32(version.at, 2, true)],
    [
      "flags",
      "version 2 and a MAC of zeros",
      (view) => {
        view.setUint32(version.at, 2, true);
        view.setUint32(flags.at, 3, true);
      },
    ],
    ["flags", "no parent, and its name", (view) => view.setUint32(flags.at, 0, true)],
    ["reserved", "the first reserved byte", (view) => view.setUint8(reserved.at, 1)],
    ["reserved", "the last reserved byte", (view) => view.setUint8(4087, 1)],
    ["payload_length", "no payload", (view) => view.setBigUint64(payloadBytes.at, 0n, true)],
    ["payload_length", "2^32", (view) => view.setBigUint64(payloadBytes.at, 1n << 32n, true)],
    ["payload_length", "2^63", (view) => view.setBigUint64(payloadBytes.at, 1n << 63n, true)],
    ["number", "a sequence of 2^53", (view) => view.setBigUint64(sequence.at, 1n << 53n, true)],
    ["number", "a time of 2^53", (view) => view.setBigUint64(writtenMs.at, 1n << 53n, true)],
  ];
  for (const [fault, what, change] of lies) {
    test(`with ${what} and a checksum that fits is refused as ${fault}`, () => {
      expect(faultOf(forged(change))).toBe(fault);
    });
  }

  test("fields leave no gap and do not overlap", () => {
    let end = 0;
    for (const { at, bytes } of Object.values(HEADER_FIELDS)) {
      expect<number>(at).toBe(end);
      end = at + bytes;
    }
    expect(end).toBe(HEADER_BYTES);
  });
});

describeNative("checksums", () => {
  test("of the runtime and of the native library are the same XXH3-64", () => {
    const native = loadNative();
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 5000 }), (bytes) => {
        expect(native.xxh3_64(bytes)).toBe(Bun.hash.xxHash3(bytes));
      }),
    );
  });
});
