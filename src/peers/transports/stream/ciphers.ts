import { assert } from "../../../core/index.ts";
import type { Cipher } from "../../../native/index.ts";

export interface CipherPolicy {
  /** False: payload goes in the clear to hosts that agree; only on a trusted network. */
  readonly encrypt: boolean;
  /** `aes-128-gcm` is taken to be a rule, `aegis-128l` a wish. */
  readonly cipher: Exclude<Cipher, "none">;
  /** The operator declared that nobody else listens on the network. */
  readonly trustedNetwork: boolean;
}

/** What of lanes this side accepts, the best first. Both ends must accept it. */
export function acceptedCiphers(policy: CipherPolicy): readonly Cipher[] {
  assert(policy.encrypt || policy.trustedNetwork, "only a trusted network carries plain bytes");
  const sealed: Cipher[] =
    policy.cipher === "aes-128-gcm" ? ["aes-128-gcm"] : ["aegis-128l", "aes-128-gcm"];
  return policy.encrypt ? sealed : ["none", ...sealed];
}
