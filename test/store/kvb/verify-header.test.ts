import { expect, test } from "bun:test";
import fc from "fast-check";
import {
  type ExpectedBlock,
  type HeaderMismatch,
  type KvbHeader,
  verifyHeader,
} from "../../../src/store/kvb/index.ts";
import { anyHeader } from "./arbitrary-header.ts";

function expectedOf(header: KvbHeader): ExpectedBlock {
  const { digest, layer, namespaceKey, parent, payloadBytes, payloadChecksum } = header;
  return { digest, layer, namespaceKey, parent, bytes: payloadBytes, checksum: payloadChecksum };
}

function flipped(bytes: Uint8Array, at: number): Uint8Array {
  const copy = bytes.slice();
  copy[at]! ^= 1;
  return copy;
}

const byte = fc.nat({ max: 31 });

test("the header of the block asked for has no mismatch, with its parent known or unknown", () => {
  fc.assert(
    fc.property(anyHeader, (header) => {
      const expected = expectedOf(header);
      expect(verifyHeader(header, expected)).toBeNull();
      expect(verifyHeader(header, { ...expected, parent: undefined })).toBeNull();
    }),
  );
});

const CHANGES: Record<HeaderMismatch, (it: ExpectedBlock, at: number) => Partial<ExpectedBlock>> = {
  digest: (it, at) => ({ digest: flipped(it.digest, at) }),
  layer: (it) => ({ layer: (it.layer ^ 1) >>> 0 }),
  namespace: (it, at) => ({ namespaceKey: flipped(it.namespaceKey, at) }),
  parent: (it, at) => ({
    parent: it.parent ? (at % 2 === 0 ? null : flipped(it.parent, at)) : new Uint8Array(32),
  }),
  bytes: (it) => ({ bytes: it.bytes - 1 }),
  checksum: (it) => ({ checksum: it.checksum ^ 1n }),
};

for (const [field, change] of Object.entries(CHANGES)) {
  test(`another ${field} is named`, () => {
    fc.assert(
      fc.property(anyHeader, byte, (header, at) => {
        const expected = expectedOf(header);
        const other = { ...expected, ...change(expected, at) };
        expect(verifyHeader(header, other)).toBe(field as HeaderMismatch);
      }),
    );
  });
}
