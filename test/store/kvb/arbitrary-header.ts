import fc from "fast-check";
import { type KvbHeader, PAYLOAD_BYTES_MAX } from "../../../src/store/kvb/index.ts";

const name = fc.uint8Array({ minLength: 32, maxLength: 32 });
const mac = fc
  .uint8Array({ minLength: 16, maxLength: 16 })
  .filter((bytes) => bytes.some((byte) => byte !== 0));
const u64 = fc.bigInt({ min: 0n, max: 0xffff_ffff_ffff_ffffn });
const count = fc.maxSafeNat();

/** Any header that a file may have. */
export const anyHeader: fc.Arbitrary<KvbHeader> = fc.record({
  digest: name,
  layer: fc.integer({ min: 0, max: 0xffff_ffff }),
  parent: fc.option(name),
  namespaceKey: name,
  payloadBytes: fc.integer({ min: 1, max: PAYLOAD_BYTES_MAX }),
  payloadChecksum: u64,
  mac: fc.option(mac),
  incarnation: u64,
  sequence: count,
  writtenMs: count,
});
