export type {
  AliasRow,
  BlockIndex,
  BlockRow,
  BlockRows,
  IndexState,
  PreviousRun,
} from "./block-index.ts";
export type {
  CommandRow,
  HoldLedger,
  HoldRow,
  IssuerRow,
  LedgerContents,
  LedgerState,
  PartRow,
} from "./holds/hold-ledger.ts";
export { type HoldLedgerOptions, openHoldLedger } from "./holds/open-hold-ledger.ts";
export { type IndexInspection, type InspectedIndex, inspectIndex } from "./inspect-index.ts";
export { type BlockIndexOptions, openBlockIndex } from "./open-block-index.ts";
export type { IndexOwner } from "./protocol.ts";
