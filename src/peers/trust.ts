import type { WorkerId } from "../core/index.ts";

/** Identity of a peer, as proved by its certificate. */
export interface PeerIdentity {
  readonly worker: WorkerId;
  readonly cluster: string;
  /** SHA-256 hash of the certificate in hex. */
  readonly fingerprint: string;
  /** Expiry of the certificate in milliseconds since 1970. */
  readonly notAfterMs: number;
}

/** This host's certificate and key, and the authorities that it trusts, as PEM. Never logged. */
export interface Credentials {
  readonly cluster: string;
  readonly worker: WorkerId;
  /** This host's certificate, followed by those of its issuers. */
  readonly certificates: string;
  readonly key: string;
  /** Certificates of the authorities that this host trusts. */
  readonly authorities: string;
  readonly notAfterMs: number;
}

export type AuthResult =
  | { readonly ok: true; readonly identity: PeerIdentity }
  | { readonly ok: false; readonly why: string };

/**
 * Decides whether to accept peers' certificates. The TLS library verifies signatures and dates;
 * this interface covers the rest. Promises: a certificate is accepted only if its single URI name
 * is `spiffe://<cluster>/hearth/<worker id>` with this host's cluster, it is in date, and its key
 * usage fits. If this host dialled the peer, the worker id must be the dialled one.
 */
export interface Trust {
  /** Credentials that were read and verified most recently. */
  readonly credentials: Credentials;
  /**
   * Decides whether to accept a certificate. `der`: the peer's certificate. `dialled`: name of the
   * worker that this host dialled, or null if the peer connected to this host.
   */
  authorize(der: Uint8Array, dialled: WorkerId | null): AuthResult;
  /** Calls the listener after each change of `credentials`. */
  onChange(listener: () => void): Disposable;
}
