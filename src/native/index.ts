export { ABI_HASH, FUNCTIONS, LANE_CIPHER, STATUS, STRUCTS } from "./abi.gen.ts";
export { BareCuda, isStandInCuda } from "./bare-cuda.ts";
export {
  type BlockDisk,
  type BlockTransfer,
  type DiskEntry,
  type DiskOptions,
  HEADER_BYTES,
  type HeaderSlot,
  openDisk,
} from "./disk.ts";
export { crashPoint, faultPoint, setFaults } from "./faults.ts";
export {
  type GpuDevice,
  type GpuFault,
  type GpuMemory,
  type GpuOpened,
  type GpuOutcome,
  type GpuPiece,
  type GpuState,
  type Gpus,
  type GpusInfo,
  type GpusOptions,
  openGpus,
} from "./gpus.ts";
export { BlockMacs, MAC_BYTES, type MacBlock, Queue } from "./hash-queue.ts";
export {
  CIPHERS,
  type Cipher,
  LaneError,
  type LaneFault,
  type LaneSession,
  type Lanes,
  type LanesOptions,
  type OpenLaneSession,
  openLanes,
  type Received,
  type Sent,
} from "./lanes.ts";
export { CPU_FLAGS, compiled, cpuFlags, type FunctionName, hostTarget } from "./library.ts";
export {
  type NativeBuffer,
  NativeError,
  nativeBuffer,
  readStruct,
  type StatusName,
  type StructName,
  type StructValue,
  writeStruct,
} from "./memory.ts";
export {
  type Build,
  type FileLock,
  loadNative,
  lockFile,
  Native,
  nativeAvailable,
  type SocketPeer,
} from "./native.ts";
export { type PlainListener, plainListen, plainPull, plainServe } from "./plain-sockets.ts";
export {
  blocksOfTokens,
  keyHashes,
  PREFIX_CHANGE,
  PREFIX_TIERS_ALL,
  PrefixChanges,
  PrefixTable,
  type SequenceHashing,
  sequenceHashes,
} from "./prefix-table.ts";
export {
  type DirectOutcome,
  type Lent,
  openRdma,
  type Rdma,
  type RdmaAddress,
  type RdmaFault,
  type RdmaOptions,
  type RdmaPort,
  type RdmaPortState,
  type RdmaQueuePair,
  type RdmaQueuePairSettings,
  type RdmaRead,
  type RdmaState,
  type RdmaWindow,
  tryDirect,
} from "./rdma.ts";
export { Region, type Wish } from "./region.ts";
