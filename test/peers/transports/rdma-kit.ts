import type { RdmaOptions, RdmaQueuePairSettings, Region } from "../../../src/native/index.ts";
import type { RdmaLimits } from "../../../src/peers/index.ts";
import { nativeVerdict } from "../../support/native.ts";
import { type StandIn, standIn } from "../../support/stand-ins.ts";
import type { ContractLimits } from "./contract-kit.ts";

export const LINK_SETTINGS: RdmaQueuePairSettings = {
  ...{ timeout: 14, retries: 6, trafficClass: 0, serviceLevel: 0, pieceBytes: 256 * 1024 },
};

/** Null if tests use a host's own library and devices. */
export function standInVerbs(): StandIn | null {
  return process.env.HEARTH_TEST_VERBS === undefined ? standIn("libibverbs.so.1") : null;
}

/**
 * This process and its children share devices in this folder, apart from other tests. Returns a
 * function that ends it.
 */
export function meetIn(folder: string): () => void {
  if (nativeVerdict().kind !== "ready") return () => undefined;
  process.env.STANDIN_VERBS = `dir=${folder}`;
  planVerbs("");
  return () => {
    delete process.env.STANDIN_VERBS;
    standInVerbs()?.configure("");
  };
}

/** Resets the stand-in with these devices and faults. */
export function planVerbs(plan: string): void {
  standInVerbs()?.configure(`${process.env.STANDIN_VERBS};${plan}`);
}

/** The library for tests: the one named by the environment, or the stand-in. */
export function verbsLibrary(): string {
  return process.env.HEARTH_TEST_VERBS ?? standIn("libibverbs.so.1").path;
}

export function verbsOptions(region: Region, more: Partial<RdmaOptions> = {}): RdmaOptions {
  return {
    ...{ region, library: verbsLibrary(), devices: null, gidIndex: null },
    ...{ windowBytes: 256 * 2 ** 20, windowSpans: 1_024, linksMax: 64, readsMax: 1_024 },
    onPort: () => undefined,
    ...more,
  };
}

/** The contract's limits as limits of this transport. */
export function rdmaLimitsOf(limits: ContractLimits): Partial<RdmaLimits> {
  const { linksMax, requestsMax, progressMs, handshakeMs } = limits;
  return {
    ...{ linksMax, handshakeMs, setUpMs: handshakeMs, connectionRequestsMax: requestsMax },
    ...{ stallMs: progressMs, progressMs: progressMs / 5, graceMs: progressMs / 2 },
    ...{ pingMs: progressMs / 2, silentMs: 3 * progressMs, expiryCheckMs: progressMs / 5 },
    lentMs: 10 * progressMs,
  };
}
