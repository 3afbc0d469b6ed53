import { STRUCTS } from "./abi.gen.ts";
import { nativeBuffer, readStruct, structOf } from "./memory.ts";
import type { Native } from "./native.ts";
import type { Region } from "./region.ts";

export interface PlainListener {
  readonly fd: number;
  readonly port: number;
}

export interface PlainPull {
  readonly region: Region;
  readonly port: number;
  readonly blockBytes: number;
  readonly blocks: number;
  /** Each connection has its own thread on both sides. */
  readonly connections: number;
  /** Blocks requested and not received yet, over all connections. */
  readonly inFlight: number;
}

/**
 * Listens on the loopback interface with plain sockets, as a baseline for benchmarks. Throws
 * NativeError.
 */
export function plainListen(native: Native): PlainListener {
  const out = nativeBuffer(STRUCTS.PlainListener.size);
  native.call("hearth_plain_listen", out.bytes);
  return readStruct("PlainListener", out.bytes);
}

/** Blocks the process until this many connections have arrived and ended. Throws NativeError. */
export function plainServe(
  native: Native,
  region: Region,
  listener: PlainListener,
  connections: number,
): void {
  native.call("hearth_plain_serve", region.handle, listener.fd, connections);
}

/** Blocks the process until all blocks are in the region. Throws NativeError. */
export function plainPull(native: Native, pull: PlainPull): void {
  const request = structOf("PlainPull", {
    region: BigInt(pull.region.handle),
    blocks: BigInt(pull.blocks),
    block_bytes: BigInt(pull.blockBytes),
    port: pull.port,
    connections: pull.connections,
    in_flight: pull.inFlight,
    reserved: 0,
  });
  native.call("hearth_plain_pull", request);
}
