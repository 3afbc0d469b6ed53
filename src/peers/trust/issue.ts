import { HearthError } from "../../core/index.ts";
import { readCertificate } from "./certificate-reader.ts";
import {
  authorityKeyIdentifier,
  basicConstraints,
  certificatePem,
  commonName,
  extendedKeyUsage,
  generateKey,
  keyUsage,
  publicKeyOf,
  signCertificate,
  subjectAltName,
  subjectKeyIdentifier,
} from "./certificate-writer.ts";
import { clusterUri, type PeerName, peerUri } from "./names.ts";
import { OID } from "./oids.ts";
import { decodePem } from "./pem.ts";

/** A certificate and its key (PKCS#8), both in PEM. */
export interface KeyPair {
  readonly certificate: string;
  readonly key: string;
}

export interface Validity {
  readonly notBeforeMs: number;
  readonly notAfterMs: number;
}

/** Signs hosts' certificates, and no other authorities. */
export function makeAuthority(options: {
  readonly cluster: string;
  readonly validity: Validity;
}): KeyPair {
  const { cluster, validity } = options;
  const key = generateKey();
  const publicKey = publicKeyOf(key);
  const name = commonName(`Hearth CA of ${cluster}`);
  const der = signCertificate({
    issuer: name,
    subject: name,
    publicKey,
    ...validity,
    extensions: [
      basicConstraints({ pathLength: 0 }),
      keyUsage("certSign", "crlSign"),
      subjectAltName({ kind: "uri", value: clusterUri(cluster) }),
      subjectKeyIdentifier(publicKey),
      authorityKeyIdentifier(publicKey),
    ],
    signingKey: key,
  });
  return { certificate: certificatePem(der), key };
}

/**
 * A host's certificate for `key` (PEM; a new one where it is null). The worker id is also its DNS
 * name, which QUIC connections are checked against.
 */
export function issueHost(options: {
  readonly authority: KeyPair;
  readonly name: PeerName;
  readonly key: string | null;
  readonly validity: Validity;
}): KeyPair {
  const { authority, name, validity } = options;
  const key = options.key ?? generateKey();
  const publicKey = publicKeyOf(key);
  const der = signCertificate({
    issuer: subjectOf(authority.certificate),
    subject: commonName(name.worker),
    publicKey,
    ...validity,
    extensions: [
      basicConstraints(null),
      keyUsage("digitalSignature"),
      extendedKeyUsage(OID.serverAuth, OID.clientAuth),
      subjectAltName({ kind: "uri", value: peerUri(name) }, { kind: "dns", value: name.worker }),
      subjectKeyIdentifier(publicKey),
      authorityKeyIdentifier(publicKeyOf(authority.key)),
    ],
    signingKey: authority.key,
  });
  return { certificate: certificatePem(der), key };
}

/** The distinguished name of the first certificate of a PEM text. */
function subjectOf(pem: string): Uint8Array {
  const [der] = decodePem("CERTIFICATE", pem);
  const read = der === undefined ? null : readCertificate(der);
  if (read?.ok) return read.certificate.subject;
  const why = read === null ? "is none in PEM" : read.why;
  throw new HearthError("CONFIG_INVALID", `the authority's certificate ${why}`);
}
