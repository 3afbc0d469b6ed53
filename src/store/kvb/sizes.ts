import { HEADER_BYTES } from "../../native/index.ts";

export { HEADER_BYTES };

/** What files are padded to. */
const PAGE_BYTES = 4096;

/** A block's length is a u32 on the wire and in the table. */
export const PAYLOAD_BYTES_MAX = 0xffff_ffff;

/** Length of the file that holds a payload: header, payload, zeros up to a multiple of 4096. */
export function fileBytesOf(payloadBytes: number): number {
  return HEADER_BYTES + Math.ceil(payloadBytes / PAGE_BYTES) * PAGE_BYTES;
}
