import type { Loan } from "../../store/index.ts";
import type { FrameHeader } from "../messages.ts";
import { ALIASES_MAX, MODEL_BYTES_MAX } from "../wire/index.ts";

/** What stands before the bytes of a block that is lent. */
export function frameHeader(loan: Loan, namespace: Uint8Array, model: string): FrameHeader {
  const { digest, layer, bytes, generation, checksum, mac, parent, transient } = loan;
  const aliases = loan.aliases.slice(0, ALIASES_MAX);
  const told = { digest, layer, bytes, generation, checksum, mac, parent, transient };
  return { ...told, aliases, namespace, model };
}

/** A model's name as frames may carry it; empty where it is no short line of text. */
export function modelOnWire(model: string): string {
  const fits = model.isWellFormed() && Buffer.byteLength(model) <= MODEL_BYTES_MAX;
  return fits && !/\p{Cc}/u.test(model) ? model : "";
}
