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
  /** Number of TCP connections. Each has its own thread on both sides. */
  readonly connections: number;
  /** Number of blocks requested and not yet received, over all connections. */
  readonly inFlight: number;
}

/**
 * Listens on the loopback interface, to benchmark transfers over plain sockets. Throws NativeError.
 */
export function plainListen(native: Native): PlainListener {
  const out = nativeBuffer(STRUCTS.PlainListener.size);
  native.call("hearth_plain_listen", out.bytes);
  return readStruct("PlainListener", out.bytes);
}

/**
 * Sends blocks to clients. Blocks the process until `connections` connections have been accepted
 * and have ended. Throws NativeError.
 */
export function plainServe(
  native: Native,
  region: Region,
  listener: PlainListener,
  connections: number,
): void {
  native.call("hearth_plain_serve", region.handle, listener.fd, connections);
}

/**
 * Fetches blocks. Blocks the process until all blocks are in the memory region. Throws NativeError.
 */
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
