import { assert } from "../core/index.ts";
import { RDMA_DIRECT_STEP, STRUCTS } from "./abi.gen.ts";
import { nativeBuffer } from "./buffers.ts";
import { readStruct, writeStruct } from "./layout.ts";
import type { Native } from "./native.ts";
import type { RdmaPort } from "./rdma.ts";
import type { Region } from "./region.ts";

/** What kept a NIC from writing to a GPU's memory; `works`: nothing the NIC knows of. */
export type DirectStep = keyof typeof RDMA_DIRECT_STEP;

export interface DirectTrial {
  readonly region: Region;
  /** What is read. */
  readonly offset: number;
  readonly bytes: number;
  /** Null: libibverbs as the dynamic linker finds it. */
  readonly library: string | null;
  readonly port: Pick<RdmaPort, "device" | "number" | "gidIndex">;
  /** A buffer that a GPU's driver exported; it stays the caller's. */
  readonly fd: number;
  /** Where in it. */
  readonly bufferOffset: number;
}

export interface DirectOutcome {
  readonly step: DirectStep;
  /** The errno behind it, or the completion's status; 0: none is known. */
  readonly code: number;
}

const STEPS = Object.entries(RDMA_DIRECT_STEP) as [DirectStep, number][];
const NAME_BYTES = 64;

/**
 * Lets a NIC read out of the region and into memory of a GPU, over a connection with itself. Blocks
 * for milliseconds, for three seconds at most: for starts and the doctor. Throws NativeError where
 * the span is none.
 */
export function tryDirect(native: Native, trial: DirectTrial): DirectOutcome {
  const { region, offset, bytes, port, fd, bufferOffset } = trial;
  const path = new TextEncoder().encode(`${trial.library ?? ""}\0`);
  const library = nativeBuffer(path.length);
  library.bytes.set(path);
  const device = new Uint8Array(NAME_BYTES);
  device.set(new TextEncoder().encode(port.device));
  const request = nativeBuffer(STRUCTS.RdmaDirectRequest.size).bytes;
  writeStruct(
    "RdmaDirectRequest",
    {
      region: BigInt(region.handle),
      offset: BigInt(offset),
      bytes: BigInt(bytes),
      library: BigInt(trial.library === null ? 0 : library.address),
      device,
      buffer_offset: BigInt(bufferOffset),
      fd,
      port: port.number,
      gid_index: port.gidIndex,
      reserved: 0,
    },
    request,
  );
  const answer = nativeBuffer(STRUCTS.RdmaDirect.size).bytes;
  native.check("hearth_rdma_direct", native.symbols.hearth_rdma_direct(request, answer));
  // Until here the library may read the path.
  assert(library.address !== 0, "the path has an address");
  const { step, code } = readStruct("RdmaDirect", answer);
  const found = STEPS.find(([, number]) => number === step);
  assert(found !== undefined, "a trial ends at a step that has a name");
  return { step: found[0], code };
}
