import type { WorkerId } from "../core/index.ts";

/** Who is at the other end, as its certificate proves. */
export interface PeerIdentity {
  readonly worker: WorkerId;
  readonly cluster: string;
  /** SHA-256 of the certificate, in hex. */
  readonly fingerprint: string;
  /** When the certificate ends, in milliseconds since 1970. */
  readonly notAfterMs: number;
}

/** What this host shows, and whom it believes; PEM. Never logged. */
export interface Credentials {
  readonly cluster: string;
  readonly worker: WorkerId;
  /** The host's certificate, then those that signed it. */
  readonly certificates: string;
  readonly key: string;
  /** Those whose signature makes a peer's certificate good. */
  readonly authorities: string;
  readonly notAfterMs: number;
}

export type Judgement =
  | { readonly ok: true; readonly identity: PeerIdentity }
  | { readonly ok: false; readonly why: string };

/**
 * Who may speak with us. The TLS library verifies signatures and dates; this looks at what it
 * leaves open. Promises: a certificate is good only if its one URI name is
 * `spiffe://<cluster>/hearth/<worker id>` with our cluster, it is in date, and it may be used for
 * what it is used for; a dialled peer's name is the one that was dialled.
 */
export interface Trust {
  /** The latest that were read and found good. */
  readonly credentials: Credentials;
  /** `der`: the peer's certificate. `dialled`: whom we called; null: it called us. */
  judge(der: Uint8Array, dialled: WorkerId | null): Judgement;
  /** Called after each change of `credentials`. */
  onChange(listener: () => void): Disposable;
}
