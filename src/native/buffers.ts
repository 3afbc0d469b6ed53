import { ptr } from "bun:ffi";
import { assert } from "../core/index.ts";

/**
 * Memory whose address native code may keep. Small typed arrays move when the engine's collector or
 * optimiser pleases; an explicit ArrayBuffer does not. This is the only place that makes addresses.
 */
export interface NativeBuffer {
  readonly bytes: Uint8Array<ArrayBuffer>;
  /** Stays true as long as `bytes` is referenced: whoever keeps the address keeps this object. */
  readonly address: number;
}

export function nativeBuffer(byteLength: number): NativeBuffer {
  assert(byteLength > 0, "a native buffer has at least one byte");
  const bytes = new Uint8Array(new ArrayBuffer(byteLength));
  const address: unknown = ptr(bytes);
  assert(typeof address === "number", "an address is a number");
  return { bytes, address };
}
