/** XXH3-64 over the record of a row: finds accidents, as the seals of the index of blocks do. */
export function sealOfRecord(record: Uint8Array): bigint {
  return Bun.hash.xxHash3(record);
}

/** With its place in the ring, which no field of it says. */
export function sealOfCommand(record: Uint8Array, id: number): bigint {
  return Bun.hash.xxHash3(record, BigInt(id));
}
