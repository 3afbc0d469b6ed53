import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import {
  basicConstraints,
  type CertificateSpec,
  commonName,
  decodePem,
  encodePem,
  extendedKeyUsage,
  extension,
  generateKey,
  KEY_USAGE,
  type KeyUsage,
  keyUsage,
  OID,
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

function certificate(
  extensions: CertificateSpec["extensions"],
  validity: Validity = validFor(1),
): Uint8Array {
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
    const kind = fc.constantFrom("uri", "dns", "email");
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

/** An extension with a value in hex. */
function extensionOf(id: string, hex: string) {
  return extension(id, false, Uint8Array.fromHex(hex.replaceAll(" ", "")));
}

test("names of further kinds are read as others, without their values", () => {
  // An IP address, a registered OID, a directory name.
  const listed =
    "3026 8704 7f000001 8803 2a0304 a419 3017 3115 3013 0603550403 0c0c 68656172746820636e202e20";
  expect(reading(certificate([extensionOf(OID.subjectAltName, listed)])).names).toEqual(
    Array(3).fill({ kind: "other", value: "" }),
  );
});

describe("invalid DER is refused:", () => {
  test.each([
    ["a length in more bytes than it takes", "3081038601 61", "not the only DER encoding"],
    ["a length without an end", "3080860161 0000", "not the only DER encoding"],
    ["a length of too many bytes", "308400000003860161", "not the only DER encoding"],
    [
      "a name that goes beyond its list",
      "3003860261",
      "not the DER encoding of a SubjectAlternativeName",
    ],
    ["a name with a long tag", "30049f860161", "not the DER encoding of a SubjectAlternativeName"],
    ["a name that is none", "3003060161", "not the DER encoding of a SubjectAlternativeName"],
    ["no names", "3000", "is empty"],
    ["something behind the names", "300386016100", "not the only DER encoding"],
    ["another thing than names", "0c0161", "not the DER encoding of a SubjectAlternativeName"],
  ])("%s", (_what, hex, words) => {
    const read = readCertificate(certificate([extensionOf(OID.subjectAltName, hex)]));
    expect(read.ok ? "accepted" : read.why).toContain(words);
  });

  test.each([
    ["an authority that is neither true nor false", OID.basicConstraints, "3003010101"],
    ["an explicit default", OID.basicConstraints, "3003010100"],
    ["a path length without an authority", OID.basicConstraints, "3003020100"],
    ["a negative path length", OID.basicConstraints, "30060101ff0201ff"],
    ["a padded path length", OID.basicConstraints, "30070101ff02020001"],
    ["a key usage of no bytes", OID.keyUsage, "030100"],
    ["a key usage of three bytes", OID.keyUsage, "030400800080"],
    ["a usage that is not an OID", OID.extendedKeyUsage, "3003060180"],
    ["a usage with padding", OID.extendedKeyUsage, "300506032a8003"],
  ])("%s", (_what, id, hex) => {
    expect(readCertificate(certificate([extensionOf(id, hex)])).ok).toBe(false);
  });

  test.each([
    ["a month that is none", Date.UTC(2030, 0), "3330313330313030303030305a"],
    ["a day that is none", Date.UTC(2030, 0), "3330303233303030303030305a"],
    ["a time of another zone", Date.UTC(2030, 0), "3330303130313030303030302b"],
    ["an hour that is none", Date.UTC(2030, 0), "3330303130313234303030305a"],
  ])("%s", (_what, notAfterMs, hex) => {
    const der = certificate([], { notBeforeMs: 0, notAfterMs });
    const good = Buffer.from("300101000000Z").toString("hex");
    const text = Buffer.from(der).toString("hex").replace(`170d${good}`, `170d${hex}`);
    const read = readCertificate(Uint8Array.fromHex(text));
    expect(read.ok ? "accepted" : read.why).toMatch(
      /it is not the (only )?DER encoding of (a|its) Certificate/,
    );
  });
});
