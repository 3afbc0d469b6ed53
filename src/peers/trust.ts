import type { WorkerId } from "../core/index.ts";

/** The peer's identity, as its certificate proves. */
export interface PeerIdentity {
  readonly worker: WorkerId;
  readonly cluster: string;
  /** SHA-256 of the certificate, in hex. */
  readonly fingerprint: string;
  /** Expiry of the certificate in milliseconds since 1970. */
  readonly notAfterMs: number;
}

/** This host's certificate and the authorities that it trusts, as PEM. Never logged. */
export interface Credentials {
  readonly cluster: string;
  readonly worker: WorkerId;
  /** The host's certificate, followed by its issuers. */
  readonly certificates: string;
  readonly key: string;
  /** Certificates of the trusted authorities. */
  readonly authorities: string;
  readonly notAfterMs: number;
}

export type AuthResult =
  | { readonly ok: true; readonly identity: PeerIdentity }
  | { readonly ok: false; readonly why: string };

/**
 * Authorizes peers. The TLS library verifies signatures and dates; this verifies the rest.
 * Promises: a certificate is accepted only if its single URI name is
 * `spiffe://<cluster>/hearth/<worker id>` with this host's cluster, it is in date, and its key
 * usage fits; a dialled peer's name is the one that was dialled.
 */
export interface Trust {
  /** The latest credentials that were read and verified. */
  readonly credentials: Credentials;
  /**
   * `der`: the peer's certificate. `dialled`: the worker that this host dialled; null: the peer
   * connected to this host.
   */
  authorize(der: Uint8Array, dialled: WorkerId | null): AuthResult;
  /** Calls the listener after each change of `credentials`. */
  onChange(listener: () => void): Disposable;
}
