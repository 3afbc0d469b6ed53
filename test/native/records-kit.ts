import {
  LANE_CIPHER,
  loadNative,
  nativeBuffer,
  STRUCTS,
  writeStruct,
} from "../../src/native/index.ts";

/** The position of records in a session. `rekeyBytes` 0: the cipher's limit. */
export interface RecordPlace {
  readonly id: Uint8Array;
  readonly secret: Uint8Array;
  readonly lane: number;
  /** 0 from the dialling side, 1 to the dialling side. */
  readonly direction: number;
  readonly cipher: keyof typeof LANE_CIPHER;
  readonly rekeyBytes: number;
}

/** An unencrypted data record. */
export function dataRecord(record: {
  readonly transfer: number;
  readonly offset: number;
  readonly payload: string;
  readonly last: boolean;
}): Uint8Array {
  const payload = new TextEncoder().encode(record.payload);
  const header = new DataView(new ArrayBuffer(24));
  header.setUint8(0, 1);
  header.setUint8(1, 3);
  header.setUint8(2, record.last ? 1 : 0);
  header.setUint32(4, payload.length, true);
  header.setUint32(8, record.transfer, true);
  header.setBigUint64(16, BigInt(record.offset), true);
  return Buffer.concat([new Uint8Array(header.buffer), payload]);
}

function run(
  call: "hearth_records_seal" | "hearth_records_open",
  place: RecordPlace,
  bytes: Uint8Array,
  room: number,
): Uint8Array | number {
  const request = nativeBuffer(STRUCTS.RecordPlace.size).bytes;
  const { id, secret, lane, direction, rekeyBytes } = place;
  writeStruct(
    "RecordPlace",
    {
      ...{ id, secret, lane, direction, reserved: 0 },
      cipher: LANE_CIPHER[place.cipher],
      rekey_bytes: BigInt(rekeyBytes),
    },
    request,
  );
  const from = nativeBuffer(Math.max(1, bytes.length));
  from.bytes.set(bytes);
  const to = nativeBuffer(Math.max(1, room));
  const code = loadNative().symbols[call](request, from.bytes, bytes.length, to.bytes, room);
  return code < 0 ? code : to.bytes.slice(0, code);
}

/** Encrypts consecutive records. Returns the status if it fails. */
export function sealRecords(place: RecordPlace, plain: Uint8Array): Uint8Array | number {
  return run("hearth_records_seal", place, plain, 2 * plain.length + 1024);
}

export function openRecords(place: RecordPlace, sealed: Uint8Array): Uint8Array | number {
  return run("hearth_records_open", place, sealed, sealed.length);
}
