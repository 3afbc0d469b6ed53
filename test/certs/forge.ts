import type { WorkerId } from "../../src/core/index.ts";
import {
  authorityKeyIdentifier,
  basicConstraints,
  type CertificateSpec,
  type Credentials,
  certificatePem,
  commonName,
  extendedKeyUsage,
  generateKey,
  type KeyPair,
  keyUsage,
  OID,
  peerUri,
  publicKeyOf,
  signCertificate,
  subjectAltName,
  subjectKeyIdentifier,
  type Validity,
  type WrittenName,
} from "../../src/peers/index.ts";
import { type TestCluster, validFor } from "../support/index.ts";

/** The properties in which a certificate differs from a good host's. */
export interface Forgery {
  readonly subject?: Uint8Array;
  readonly names?: readonly WrittenName[];
  readonly validity?: Validity;
  /** OIDs; null: no such extension. */
  readonly extendedKeyUsage?: readonly string[] | null;
  readonly extensions?: CertificateSpec["extensions"];
  /** Replaces the extensions of a host's certificate (no authority, key usage). */
  readonly constraints?: CertificateSpec["extensions"];
  /** The signer; default: the cluster's authority. `self`: its own key. */
  readonly signer?: Signer | "self";
  readonly key?: string;
}

export interface Signer {
  /** The signer's distinguished name. */
  readonly name: Uint8Array;
  readonly key: string;
}

/** The trusted signer of the cluster. */
export function authorityOf({ name, authority }: TestCluster): Signer {
  return { name: commonName(`Hearth CA of ${name}`), key: authority.key };
}

export function goodNames(cluster: string, worker: string): WrittenName[] {
  return [
    { kind: "uri", value: peerUri({ cluster, worker: worker as WorkerId }) },
    { kind: "dns", value: worker },
  ];
}

export function forge(cluster: TestCluster, worker: string, forgery: Forgery): KeyPair {
  const key = forgery.key ?? generateKey();
  const publicKey = publicKeyOf(key);
  const subject = forgery.subject ?? commonName(worker);
  const signer = forgery.signer ?? authorityOf(cluster);
  const by = signer === "self" ? { name: subject, key } : signer;
  const names = forgery.names ?? goodNames(cluster.name, worker);
  const uses = forgery.extendedKeyUsage;
  const der = signCertificate({
    issuer: by.name,
    subject,
    publicKey,
    ...(forgery.validity ?? validFor(30)),
    extensions: [
      ...(forgery.constraints ?? [basicConstraints(null), keyUsage("digitalSignature")]),
      ...(uses === null ? [] : [extendedKeyUsage(...(uses ?? [OID.serverAuth, OID.clientAuth]))]),
      ...(names.length === 0 ? [] : [subjectAltName(...names)]),
      subjectKeyIdentifier(publicKey),
      authorityKeyIdentifier(publicKeyOf(by.key)),
      ...(forgery.extensions ?? []),
    ],
    signingKey: by.key,
  });
  return { certificate: certificatePem(der), key };
}

/** Credentials of a host with this pair; `chain` follows its certificate. */
export function credentialsWith(
  cluster: TestCluster,
  worker: string,
  { certificate, key }: KeyPair,
  chain = "",
): Credentials {
  return {
    cluster: cluster.name,
    worker: worker as WorkerId,
    certificates: certificate + chain,
    key,
    authorities: cluster.authority.certificate,
    notAfterMs: validFor(30).notAfterMs,
  };
}

export function forged(cluster: TestCluster, worker: string, forgery: Forgery): Credentials {
  return credentialsWith(cluster, worker, forge(cluster, worker, forgery));
}

/** An authority with at most `pathLength` authorities below it. */
export function authority(
  cluster: TestCluster,
  name: string,
  pathLength: number | null,
  signer: Signer | "self",
): KeyPair & Signer {
  const subject = commonName(name);
  const constraints = [basicConstraints({ pathLength }), keyUsage("certSign")];
  const forgery = { subject, signer, names: [], extendedKeyUsage: null, constraints };
  return { name: subject, ...forge(cluster, name, forgery) };
}
