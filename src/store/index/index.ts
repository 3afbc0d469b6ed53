export type * from "./block-index.ts";
export { openBlockIndex } from "./block-index.ts";
export type { IndexOwner } from "./index-worker-client.ts";
export { type IndexInspection, type InspectedIndex, inspectIndex } from "./inspect-index.ts";
export { ledger } from "./retention/ledger-store.ts";
export type * from "./retention/retention-ledger.ts";
export { openRetentionLedger } from "./retention/retention-ledger.ts";
export { namespaces, run } from "./store/index-store.ts";
