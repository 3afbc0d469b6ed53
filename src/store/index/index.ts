export type {
  AliasRow,
  BlockIndex,
  BlockRow,
  BlockRows,
  IndexState,
  PreviousRun,
} from "./block-index.ts";
export type { IndexOwner } from "./index-worker-client.ts";
export { type IndexInspection, type InspectedIndex, inspectIndex } from "./inspect-index.ts";
export type {
  CommandRow,
  IssuerRow,
  LedgerContents,
  LedgerState,
  PartRow,
  RetentionLedger,
  RetentionRow,
} from "./retention/retention-ledger.ts";
export {
  openRetentionLedger,
  type RetentionLedgerOptions,
} from "./retention/write-behind-ledger.ts";
export { type BlockIndexOptions, openBlockIndex } from "./write-behind-index.ts";
