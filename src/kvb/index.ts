export {
  isLeftover,
  LOCK_FILE,
  OWNER_FILE,
  QUARANTINE_FOLDER,
  quarantinePath,
  SHARDS,
} from "./folder.ts";
export {
  type DecodedHeader,
  decodeHeader,
  encodeHeader,
  FORMAT_VERSION,
  HEADER_FIELDS,
  type HeaderFault,
  type KvbHeader,
} from "./header.ts";
export { type BlockName, blockPath, parseBlockName, shardOf, VARIANT_MAX } from "./names.ts";
export { type FolderOwner, type OwnerFile, readMachineId, readOwner } from "./owner.ts";
export { fileBytesOf, HEADER_BYTES, PAYLOAD_BYTES_MAX } from "./sizes.ts";
export { type ExpectedBlock, type HeaderMismatch, verifyHeader } from "./verify-header.ts";
