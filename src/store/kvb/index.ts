export {
  checkFolder,
  emptyTally,
  type FolderCheck,
  type FolderTally,
  type IndexedBlock,
  type IndexedBlocks,
} from "./check-folder.ts";
export {
  type ClaimedFolder,
  claimFolder,
  type FolderClaim,
  lockFolder,
} from "./claim-folder.ts";
export { FINDING_KINDS, type Finding, type FindingKind } from "./findings.ts";
export {
  INDEX_FOLDER,
  isLeftover,
  LOCK_FILE,
  OWNER_FILE,
  QUARANTINE_FOLDER,
  quarantinePath,
  SHARDS,
} from "./folder.ts";
export {
  type FolderReport,
  type ReportedFinding,
  type ReportOptions,
  reportFolder,
} from "./folder-report.ts";
export {
  type DecodedHeader,
  decodeHeader,
  encodeHeader,
  FORMAT_VERSION,
  HEADER_FIELDS,
  type HeaderFault,
  type KvbHeader,
  MAC_FORMAT_VERSION,
} from "./header.ts";
export { FileInspector, type Inspection } from "./inspect-file.ts";
export { type BlockName, blockPath, parseBlockName, shardOf, VARIANT_MAX } from "./names.ts";
export {
  type FolderOwner,
  isSsdFolder,
  type OwnerFile,
  readMachineId,
  readOwner,
} from "./owner.ts";
export { type Repair, type RepairTools, repairFinding } from "./repair.ts";
export { fileBytesOf, HEADER_BYTES, PAYLOAD_BYTES_MAX } from "./sizes.ts";
export { type ExpectedBlock, type HeaderMismatch, verifyHeader } from "./verify-header.ts";
