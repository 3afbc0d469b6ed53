import { expect, test } from "bun:test";
import { generateKeyPairSync, X509Certificate } from "node:crypto";
import fc from "fast-check";
import {
  encodePreface,
  isProof,
  makeProof,
  PADDING_BYTES_MAX,
  PROOF_BYTES_MAX,
  PrefaceReader,
} from "../../../src/peers/transports/quic/index.ts";
import { makeCluster } from "../../support/cluster.ts";

/** Feeds a reader with chunks that end at these places; returns the number of bytes consumed. */
function feed(reader: PrefaceReader, bytes: Uint8Array, cuts: readonly number[]): number {
  let taken = 0;
  const ends = [...cuts.map((cut) => cut % (bytes.length + 1)), bytes.length].sort((a, b) => a - b);
  let from = 0;
  for (const end of ends) {
    const chunk = bytes.subarray(from, end);
    const at = reader.complete || reader.fault !== null ? 0 : reader.take(chunk, 0);
    taken += at;
    if (at < chunk.length) break;
    from = end;
  }
  return taken;
}

test("a preface is decoded from any chunks, and the bytes after it are left", () => {
  fc.assert(
    fc.property(
      fc.uint8Array({ maxLength: PROOF_BYTES_MAX }),
      fc.nat({ max: PADDING_BYTES_MAX }),
      fc.uint8Array({ minLength: 1, maxLength: 50 }),
      fc.array(fc.nat(), { maxLength: 8 }),
      (proof, paddingBytes, behind, cuts) => {
        const preface = encodePreface(proof, paddingBytes);
        const reader = new PrefaceReader();
        const taken = feed(reader, Buffer.concat([preface, behind]), cuts);
        expect(reader.complete).toBe(true);
        expect(reader.proof).toEqual(proof);
        expect(taken).toBe(preface.length);
      },
    ),
  );
});

test("any input is handled without an exception, and little is kept", () => {
  fc.assert(
    fc.property(
      fc.uint8Array({ maxLength: 20_000 }),
      fc.array(fc.nat(), { maxLength: 8 }),
      (bytes, cuts) => {
        const reader = new PrefaceReader();
        expect(feed(reader, bytes, cuts)).toBeLessThanOrEqual(4 + 1_024 + 8 * 1_024);
        expect((reader.proof ?? []).length).toBeLessThanOrEqual(PROOF_BYTES_MAX);
      },
    ),
  );
});

test("a proof is valid for one key, client, server and cluster", () => {
  const { certificates, key } = makeCluster().host("a");
  const certificate = new X509Certificate(certificates);
  const speakers = { cluster: "test", client: "a", server: "b" } as never as Parameters<
    typeof makeProof
  >[1];
  const proof = makeProof(key, speakers);
  expect(proof.length).toBeLessThanOrEqual(PROOF_BYTES_MAX);
  expect(isProof(certificate, speakers, proof)).toBe(true);
  for (const other of [{ cluster: "x" }, { client: "x" }, { server: "x" }]) {
    expect(isProof(certificate, { ...speakers, ...other } as never, proof)).toBe(false);
  }
  const flipped = Uint8Array.from(proof, (byte, index) => (index === 9 ? byte ^ 1 : byte));
  expect(isProof(certificate, speakers, flipped)).toBe(false);
  expect(isProof(certificate, speakers, new Uint8Array(0))).toBe(false);
});

test("keys of every type that certificates have can prove", () => {
  const speakers = { cluster: "c", client: "a", server: "b" } as never;
  for (const pair of [
    generateKeyPairSync("ec", { namedCurve: "P-256" }),
    generateKeyPairSync("ec", { namedCurve: "P-384" }),
    generateKeyPairSync("ed25519"),
    generateKeyPairSync("rsa", { modulusLength: 2_048 }),
  ]) {
    const pem = pair.privateKey.export({ type: "pkcs8", format: "pem" }).toString();
    const certificate = { publicKey: pair.publicKey } as X509Certificate;
    const proof = makeProof(pem, speakers);
    expect(proof.length).toBeLessThanOrEqual(PROOF_BYTES_MAX);
    expect(isProof(certificate, speakers, proof)).toBe(true);
  }
});
