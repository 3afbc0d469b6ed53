import type { RdmaLinkSettings } from "../../../src/native/index.ts";
import type { RdmaLimits } from "../../../src/peers/index.ts";
import type { ContractLimits } from "./contract-kit.ts";

export const LINK_SETTINGS: RdmaLinkSettings = {
  ...{ timeout: 14, retries: 6, trafficClass: 0, serviceLevel: 0, pieceBytes: 256 * 1024 },
};

/** Those of the contract in the words of this transport. */
export function rdmaLimitsOf(limits: ContractLimits): Partial<RdmaLimits> {
  const { linksMax, requestsMax, progressMs, handshakeMs } = limits;
  return {
    ...{ linksMax, handshakeMs, setUpMs: handshakeMs, linkRequestsMax: requestsMax },
    ...{ stallMs: progressMs, progressMs: progressMs / 5, graceMs: progressMs / 2 },
    ...{ pingMs: progressMs / 2, silentMs: 3 * progressMs, judgeMs: progressMs / 5 },
    lentMs: 4 * progressMs,
  };
}
