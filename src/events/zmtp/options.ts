import { type Clock, HearthError, type Random } from "../../core/index.ts";
import { parseEndpoint, type ZmtpEndpoint } from "./endpoint.ts";
import { ZMTP_LIMITS, type ZmtpLimits } from "./limits.ts";

export interface ZmtpOptions {
  /** `tcp://host:port` or `ipc://path`. */
  readonly endpoint: string;
  readonly clock: Clock;
  readonly random: Random;
  /** Those that differ from ZMTP_LIMITS. */
  readonly limits?: Partial<ZmtpLimits>;
}

export function limitsOf(options: ZmtpOptions): ZmtpLimits {
  return { ...ZMTP_LIMITS, ...options.limits };
}

/** Throws ZMTP_UNAVAILABLE where it is no endpoint. */
export function endpointOf({ endpoint }: ZmtpOptions): ZmtpEndpoint {
  const parsed = parseEndpoint(endpoint);
  if (parsed !== null) return parsed;
  throw new HearthError("ZMTP_UNAVAILABLE", `${JSON.stringify(endpoint)} is no endpoint`, {
    fix: "write tcp://host:port or ipc:///path",
  });
}
