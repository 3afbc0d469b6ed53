import { type ContractLimits, LIMITS } from "../../peers/transports/contract-kit.ts";

/** Emulated processors are slow, and the host may have other work. */
export const PATIENT: ContractLimits = { ...LIMITS, progressMs: 5_000, handshakeMs: 15_000 };
