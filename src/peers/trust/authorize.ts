import { createHash, X509Certificate } from "node:crypto";
import { isClusterName, isWorkerId, type WorkerId } from "../../core/index.ts";
import type { AuthResult, Credentials } from "../trust.ts";
import { decodePem, OID, type ReadCertificate, readCertificate } from "./certificate.ts";

const PEER_URI = /^spiffe:\/\/([^/]*)\/hearth\/([^/]*)$/;

export interface PeerName {
  readonly cluster: string;
  readonly worker: WorkerId;
}

/** Returns the URI name that a host's certificate must contain. */
export function peerUri({ cluster, worker }: PeerName): string {
  return `${clusterUri(cluster)}/hearth/${worker}`;
}

/** Returns the URI name in the certificate of a cluster's authority. */
export function clusterUri(cluster: string): string {
  return `spiffe://${cluster}`;
}

/** Parses the URI name of a host. Null unless it has exactly the form that `peerUri` creates. */
export function parsePeerUri(uri: string): PeerName | null {
  const [, cluster, worker] = PEER_URI.exec(uri) ?? [];
  if (cluster === undefined || worker === undefined) return null;
  return isClusterName(cluster) && isWorkerId(worker) ? { cluster, worker } : null;
}

/**
 * A certificate that may have signed hosts' certificates. `below`: number of further authorities
 * permitted between it and a host's certificate.
 */
interface Signer {
  readonly x509: X509Certificate;
  readonly certificate: ReadCertificate;
  readonly below: number;
}

/** Decides with a host's credentials whether to accept peers' certificates. */
export interface Authorizer {
  /**
   * Decides whether to accept the certificate `der`. `dialled`: name of the worker that this host
   * dialled, or null. `wallMs`: current time in milliseconds since 1970.
   */
  authorize(der: Uint8Array, dialled: WorkerId | null, wallMs: number): AuthResult;
}

const SIGNERS_MAX = 64;
const SHOWN_CHARACTERS_MAX = 120;

/**
 * Creates an authorizer that accepts certificates signed by one of `authorities`, or by an
 * intermediate authority in this host's own chain. It checks a peer's own certificate; the TLS
 * library verifies the complete chain.
 */
export function createAuthorizer(
  credentials: Pick<Credentials, "cluster" | "authorities" | "certificates">,
): Authorizer {
  const signers = signersOf(credentials.authorities, credentials.certificates);
  return {
    authorize(der, dialled, wallMs) {
      const read = readCertificate(der);
      if (!read.ok) return refused(`the certificate ${read.why}`);
      const { certificate } = read;
      const fault =
        useFault(certificate) ??
        dateFault(certificate, wallMs) ??
        signatureFault(signers, der, certificate, wallMs);
      if (fault !== null) return refused(fault);
      const name = nameOf(certificate);
      if (!name.ok) return name;
      const { cluster, worker } = name;
      if (cluster !== credentials.cluster) {
        return refused(`it belongs to the cluster ${cluster}, not to ${credentials.cluster}`);
      }
      if (dialled !== null && worker !== dialled) {
        return refused(`it names the worker ${worker}, but ${dialled} was dialled`);
      }
      const { notAfterMs } = certificate;
      const identity = { worker, cluster, fingerprint: fingerprintOf(der), notAfterMs };
      return { ok: true, identity };
    },
  };
}

/** Returns the SHA-256 hash of a certificate in hex. */
export function fingerprintOf(der: Uint8Array): string {
  return createHash("sha256").update(der).digest("hex");
}

function refused(why: string): AuthResult & { readonly ok: false } {
  return { ok: false, why };
}

function signersOf(authorities: string, chain: string): readonly Signer[] {
  const signers = authoritiesOf(authorities).map(([x509, certificate]) => {
    return { x509, certificate, below: certificate.authority?.pathLength ?? SIGNERS_MAX };
  });
  for (const [x509, certificate] of authoritiesOf(chain)) {
    const parent = signers.find(
      (signer) => signer.below > 0 && isSignedBy(x509, certificate, signer),
    );
    if (parent === undefined || signers.length === SIGNERS_MAX) continue;
    const below = Math.min(parent.below - 1, certificate.authority?.pathLength ?? SIGNERS_MAX);
    signers.push({ x509, certificate, below });
  }
  return signers;
}

/**
 * Returns those certificates of a PEM text that may sign others, the last one first, because a
 * chain ends with its root.
 */
function authoritiesOf(pem: string): [X509Certificate, ReadCertificate][] {
  return decodePem("CERTIFICATE", pem)
    .map((der) => [der, readCertificate(der)] as const)
    .flatMap(([der, read]): [X509Certificate, ReadCertificate][] => {
      if (!read.ok || !maySign(read.certificate)) return [];
      return [[new X509Certificate(der), read.certificate]];
    })
    .reverse();
}

/**
 * Returns whether the certificate may sign others. Ignores constraints on names and policies, which
 * the TLS library verifies.
 */
export function maySign({ authority, keyUsage }: ReadCertificate): boolean {
  return authority !== null && (keyUsage === null || keyUsage.has("certSign"));
}

function isSignedBy(x509: X509Certificate, { issuer }: ReadCertificate, signer: Signer): boolean {
  if (Buffer.compare(issuer, signer.certificate.subject) !== 0) return false;
  return x509.verify(signer.x509.publicKey);
}

function useFault(certificate: ReadCertificate): string | null {
  const { authority, keyUsage, extendedKeyUsage, unknownCritical } = certificate;
  if (unknownCritical.length > 0) {
    return `unknown critical extension ${unknownCritical[0]}`;
  }
  if (authority !== null) return "it is an authority's certificate, not a host's";
  if (keyUsage !== null && !keyUsage.has("digitalSignature")) {
    return "its key may not be used for signatures";
  }
  const lacks = (use: string) => extendedKeyUsage === null || !extendedKeyUsage.includes(use);
  if (lacks(OID.serverAuth)) return "it is not made for servers (serverAuth)";
  if (lacks(OID.clientAuth)) return "it is not made for clients (clientAuth)";
  return null;
}

function dateFault({ notBeforeMs, notAfterMs }: ReadCertificate, wallMs: number): string | null {
  if (wallMs < notBeforeMs) return `it is not valid before ${dateText(notBeforeMs)}`;
  return wallMs > notAfterMs ? `it expired at ${dateText(notAfterMs)}` : null;
}

/** Formats a time in milliseconds since 1970, in seconds: `2031-05-06T07:08:09Z`. */
export function dateText(ms: number): string {
  return new Date(ms).toISOString().replace(/\.\d+Z$/, "Z");
}

function signatureFault(
  signers: readonly Signer[],
  der: Uint8Array,
  certificate: ReadCertificate,
  wallMs: number,
): string | null {
  const now = signers.filter((signer) => dateFault(signer.certificate, wallMs) === null);
  let x509: X509Certificate;
  try {
    x509 = new X509Certificate(der);
  } catch {
    return "the TLS library cannot read the certificate";
  }
  if (now.some((signer) => isSignedBy(x509, certificate, signer))) return null;
  return "no authority of this cluster signed it";
}

function nameOf(
  certificate: ReadCertificate,
):
  | ({ readonly ok: true } & NonNullable<ReturnType<typeof parsePeerUri>>)
  | (AuthResult & { readonly ok: false }) {
  const uris = certificate.names.filter(({ kind }) => kind === "uri");
  const [uri] = uris;
  if (uri === undefined) return refused("it has no URI name");
  if (uris.length > 1) return refused(`it has ${uris.length} URI names, and one is allowed`);
  const name = parsePeerUri(uri.value);
  if (name !== null) return { ok: true, ...name };
  return refused(`its name ${shown(uri.value)} is not spiffe://<cluster>/hearth/<worker>`);
}

/** Escapes and shortens untrusted text for a log. */
function shown(text: string): string {
  const isPlain = (character: string) => character >= " " && character <= "~";
  const plain = [...text.slice(0, SHOWN_CHARACTERS_MAX)]
    .map((one) => (isPlain(one) ? one : `\\x${one.charCodeAt(0).toString(16).padStart(2, "0")}`))
    .join("");
  return JSON.stringify(plain);
}
