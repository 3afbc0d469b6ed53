/** XXH3-64 over the record of a row: finds accidents, as the seals of the index of blocks do. */
export function sealOfRecord(record: Uint8Array): bigint {
  return Bun.hash.xxHash3(record);
}

/** With its place in the ring, which no field of it says; at 0 as without one. */
export function sealInRing(record: Uint8Array, place: number): bigint {
  return Bun.hash.xxHash3(record, BigInt(place));
}
