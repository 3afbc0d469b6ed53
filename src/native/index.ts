export { ABI_HASH, FUNCTIONS, OPERATION, STATUS, STRUCTS } from "./abi.gen.ts";
export { type NativeBuffer, nativeBuffer } from "./buffers.ts";
export { readStruct, type StructName, type StructValue, writeStruct } from "./layout.ts";
export {
  CPU_FLAGS,
  compiled,
  cpuFlags,
  type FunctionName,
  hostTarget,
  libraryPath,
} from "./library.ts";
export { type Build, loadNative, Native, nativeAvailable, type SocketPeer } from "./native.ts";
export { type Completed, Queue, type QueueOptions } from "./queue.ts";
export { Region, type RegionState, type Wish } from "./region.ts";
export { NativeError, type StatusName } from "./status.ts";
