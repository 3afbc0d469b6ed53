export {
  type AliasRow,
  type BlockIndex,
  type BlockIndexOptions,
  type BlockRow,
  type BlockRows,
  type IndexState,
  openBlockIndex,
  type PreviousRun,
} from "./block-index.ts";
export type { IndexOwner } from "./index-worker-client.ts";
export { type IndexInspection, type InspectedIndex, inspectIndex } from "./inspect-index.ts";
export {
  type CommandRow,
  type IssuerRow,
  type LedgerContents,
  type LedgerState,
  openRetentionLedger,
  type PartRow,
  type RetentionLedger,
  type RetentionLedgerOptions,
  type RetentionRow,
} from "./retention/retention-ledger.ts";
