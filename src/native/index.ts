export { ABI_HASH, FUNCTIONS, LANE_CIPHER, OPERATION, STATUS, STRUCTS } from "./abi.gen.ts";
export { BareCuda, type BareCudaOptions, isStandInCuda } from "./bare-cuda.ts";
export {
  type BlockDisk,
  type BlockTransfer,
  type DiskEntry,
  type DiskOutcome,
  HEADER_BYTES,
  type HeaderSlot,
} from "./block-disk.ts";
export { BlockMacs, MAC_BYTES, MAC_KEY_BYTES, type MacBlock } from "./block-macs.ts";
export { type NativeBuffer, nativeBuffer } from "./buffers.ts";
export { crashPoint } from "./crash-point.ts";
export { type DiskOptions, openDisk } from "./disk.ts";
export { faultCounts, faultPoint, setFaults } from "./faults.ts";
export { type FileLock, lockFile } from "./file-lock.ts";
export type {
  GpuDevice,
  GpuFault,
  GpuMemory,
  GpuOpened,
  GpuOutcome,
  GpuPiece,
  GpuState,
  Gpus,
  GpusInfo,
  GpusOptions,
} from "./gpus.ts";
export {
  CIPHERS,
  type Cipher,
  LaneError,
  type LaneFault,
  type LaneLink,
  type LaneSession,
  type Lanes,
  type LanesOptions,
  type Received,
  type Sent,
} from "./lanes.ts";
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
export { openGpus } from "./native-gpus.ts";
export { openLanes } from "./native-lanes.ts";
export { openRdma } from "./native-rdma.ts";
export {
  type PlainListener,
  type PlainPull,
  plainListen,
  plainPull,
  plainServe,
} from "./plain-sockets.ts";
export {
  PREFIX_CHANGE,
  PREFIX_TIERS_ALL,
  type PrefixChange,
  PrefixChanges,
} from "./prefix-changes.ts";
export { type PrefixColumns, type PrefixRows, PrefixTable } from "./prefix-table.ts";
export {
  blocksOfTokens,
  keyHashes,
  type SequenceHashing,
  sequenceHashes,
} from "./prompt-hashes.ts";
export { type Completed, Queue, type QueueOptions } from "./queue.ts";
export type {
  Lent,
  Rdma,
  RdmaAddress,
  RdmaFault,
  RdmaLink,
  RdmaLinkSettings,
  RdmaOptions,
  RdmaPort,
  RdmaPortState,
  RdmaRead,
  RdmaState,
  RdmaWindow,
} from "./rdma.ts";
export {
  type DirectOutcome,
  type DirectStep,
  type DirectTrial,
  tryDirect,
} from "./rdma-direct.ts";
export { Region, type RegionState, type Wish } from "./region.ts";
export { NativeError, type StatusName } from "./status.ts";
