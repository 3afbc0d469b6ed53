import { type ContractLimits, LIMITS } from "../../peers/transports/contract-kit.ts";

/** Two guests share the processors of one host: twice the patience of one. */
export const PATIENT: ContractLimits = {
  ...LIMITS,
  progressMs: 2 * LIMITS.progressMs,
  handshakeMs: 2 * LIMITS.handshakeMs,
};
