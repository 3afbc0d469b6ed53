import type { WorkerId } from "../../src/core/index.ts";
import {
  authorityKeyIdentifier,
  basicConstraints,
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

/** What a certificate is made of, where it is to be other than a good host's. */
export interface Forgery {
  readonly subject?: Uint8Array;
  readonly names?: readonly WrittenName[];
  readonly validity?: Validity;
  /** OIDs; null: no such extension. */
  readonly extendedKeyUsage?: readonly string[] | null;
  readonly extensions?: readonly Uint8Array[];
  /** Instead of those that say that it signs nobody, and may be used for signatures. */
  readonly constraints?: readonly Uint8Array[];
  /** Who signs; the cluster's authority unless said. `self`: its own key does. */
  readonly signer?: Signer | "self";
  readonly key?: string;
}

export interface Signer {
  /** Its distinguished name. */
  readonly name: Uint8Array;
  readonly key: string;
}

/** The one whose signature the cluster believes. */
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

/** What a host with this pair would show; `chain` stands behind its certificate. */
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

/** One that signs others, `pathLength` authorities below it at the most. */
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
