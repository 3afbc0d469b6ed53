export { commands, holds, issuers, ledger } from "./tables.ts";
