export { commands, holds, issuers, ledger, parts } from "./tables.ts";
