import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import {
  basicConstraints,
  commonName,
  decodePem,
  encodePem,
  extendedKeyUsage,
  generateKey,
  KEY_USAGE,
  type KeyUsage,
  keyUsage,
  parsePeerUri,
  peerUri,
  publicKeyOf,
  readCertificate,
  signCertificate,
  subjectAltName,
  type Validity,
} from "../../../src/peers/index.ts";
import { validFor } from "../../support/index.ts";

const key = generateKey();
const publicKey = publicKeyOf(key);
const RUNS = { numRuns: 60 };

function certificate(extensions: Uint8Array[], validity: Validity = validFor(1)): Uint8Array {
  const name = commonName("x");
  const spec = { issuer: name, subject: name, publicKey, ...validity, extensions };
  return signCertificate({ ...spec, signingKey: key });
}

function reading(der: Uint8Array) {
  const read = readCertificate(der);
  if (!read.ok) throw new Error(read.why);
  return read.certificate;
}

describe("a certificate that was written", () => {
  test("has the same names, byte for byte", () => {
    const kind = fc.constantFrom("uri", "dns", "email", "ip", "registered");
    const value = fc.uint8Array({ maxLength: 300 }).map((b) => Buffer.from(b).toString("latin1"));
    const names = fc.array(fc.record({ kind, value }), { minLength: 1, maxLength: 20 });
    fc.assert(
      fc.property(names, (listed) => {
        expect(reading(certificate([subjectAltName(...listed)])).names).toEqual(listed);
      }),
      RUNS,
    );
  });

  test("has the same dates, to the second, from 1950 to 9999", () => {
    const [least, most] = [Date.UTC(1950, 0), Date.UTC(9999, 11, 31)];
    const date = fc.integer({ min: least / 1_000, max: most / 1_000 }).map((s) => s * 1_000);
    fc.assert(
      fc.property(date, date, (notBeforeMs, notAfterMs) => {
        const read = reading(certificate([], { notBeforeMs, notAfterMs }));
        expect([read.notBeforeMs, read.notAfterMs]).toEqual([notBeforeMs, notAfterMs]);
      }),
      RUNS,
    );
  });

  test("has the same usages", () => {
    const uses = fc.uniqueArray(fc.constantFrom(...(Object.keys(KEY_USAGE) as KeyUsage[])), {
      minLength: 1,
    });
    const arc = fc.oneof(fc.integer({ min: 0, max: 300 }), fc.integer({ min: 0, max: 2 ** 40 }));
    const oid = fc
      .tuple(fc.constantFrom("0.1", "1.39", "2.5", "2.47"), fc.array(arc, { maxLength: 8 }))
      .map(([start, arcs]) => [start, ...arcs].join("."));
    const pathLength = fc.option(fc.integer({ min: 0, max: 127 }));
    fc.assert(
      fc.property(uses, fc.array(oid, { minLength: 1 }), pathLength, (bits, oids, length) => {
        const parts = [
          keyUsage(...bits),
          extendedKeyUsage(...oids),
          basicConstraints({ pathLength: length }),
        ];
        const read = reading(certificate(parts));
        expect([...read.keyUsage!].sort()).toEqual([...bits].sort());
        expect(read.extendedKeyUsage).toEqual(oids);
        expect(read.authority).toEqual({ pathLength: length });
      }),
      RUNS,
    );
  });

  test("is decoded from PEM with other text and other line ends", () => {
    fc.assert(
      fc.property(fc.uint8Array({ minLength: 1, maxLength: 200 }), (bytes) => {
        const pem = encodePem("CERTIFICATE", bytes);
        const text = `note\n${encodePem("X", bytes)}${pem}${pem.replaceAll("\n", "\r\n")}`;
        expect(decodePem("CERTIFICATE", text)).toEqual([bytes, bytes]);
      }),
      RUNS,
    );
  });
});

test("a host's name has one canonical form", () => {
  const fine = peerUri({ cluster: "a.b-c_d", worker: "Gpu_1-x" as never });
  expect(parsePeerUri(fine)).toEqual({ cluster: "a.b-c_d", worker: "Gpu_1-x" } as never);
  fc.assert(
    fc.property(fc.string({ unit: "binary" }), fc.nat(40), (piece, at) => {
      const changed = fine.slice(0, at) + piece + fine.slice(at);
      const parsed = parsePeerUri(changed);
      if (parsed !== null) expect(peerUri(parsed)).toBe(changed);
    }),
  );
  for (const long of ["a".repeat(64), ""]) {
    expect(parsePeerUri(`spiffe://${long}/hearth/a`)).toBeNull();
    expect(parsePeerUri(`spiffe://c/hearth/${long}a`) === null).toBe(long !== "");
  }
});

/** The subjectAltName extension with a value in hex. */
function names(hex: string): Uint8Array {
  const value = Uint8Array.fromHex(hex);
  const body = [0x06, 0x03, 0x55, 0x1d, 0x11, 0x04, value.length, ...value];
  return Uint8Array.of(0x30, body.length, ...body);
}

describe("invalid DER is refused:", () => {
  test.each([
    ["a length in more bytes than it takes", "3081038601 61", "not minimal"],
    ["a length without an end", "3080860161 0000", "unsupported length"],
    ["a length of too many bytes", "308400000003860161", "unsupported length"],
    ["a name that goes beyond its list", "3003860261", "is cut short"],
    ["a name with a long tag", "30049f860161", "has a multi-byte tag"],
    ["a name that is none", "3003060161", "of an unknown kind"],
    ["no names", "3000", "is empty"],
    ["something behind the names", "300386016100", "trailing bytes"],
    ["another thing than names", "0c0161", "not where it should be"],
  ])("%s", (_what, hex, words) => {
    const read = readCertificate(certificate([names(hex.replace(" ", ""))]));
    expect(read.ok ? "accepted" : read.why).toContain(words);
  });

  test.each([
    ["a month that is none", Date.UTC(2030, 0), "3330313330313030303030305a"],
    ["a day that is none", Date.UTC(2030, 0), "3330303233303030303030305a"],
    ["a time of another zone", Date.UTC(2030, 0), "3330303130313030303030302b"],
  ])("%s", (_what, notAfterMs, hex) => {
    const der = certificate([], { notBeforeMs: 0, notAfterMs });
    const good = Buffer.from("300101000000Z").toString("hex");
    const text = Buffer.from(der).toString("hex").replace(`170d${good}`, `170d${hex}`);
    const read = readCertificate(Uint8Array.fromHex(text));
    expect(read.ok ? "accepted" : read.why).toContain("the end is not a valid time");
  });
});
