import {
  createHash,
  createPrivateKey,
  createPublicKey,
  generateKeyPairSync,
  randomBytes,
  sign,
} from "node:crypto";
import { primitiveTag } from "./der-reader.ts";
import {
  bitString,
  element,
  explicit,
  integer,
  octetString,
  oid,
  sequence,
  setOf,
  TRUE,
  time,
  utf8String,
} from "./der-writer.ts";
import { KEY_USAGE, type KeyUsage, NAME_KINDS, type NameKind, OID } from "./oids.ts";
import { encodePem } from "./pem.ts";

const SERIAL_BYTES = 16;
const X509_V3 = Uint8Array.of(2);

/** A new key on the curve P-256: PKCS#8 in PEM. */
export function generateKey(): string {
  const { privateKey } = generateKeyPairSync("ec", {
    namedCurve: "P-256",
    privateKeyEncoding: { type: "pkcs8", format: "pem" },
    publicKeyEncoding: { type: "spki", format: "der" },
  });
  return privateKey;
}

/** The public half of a private key in PEM, as certificates carry it. */
export function publicKeyOf(key: string): Uint8Array {
  const spki = createPublicKey(key).export({ type: "spki", format: "der" });
  return new Uint8Array(spki);
}

/** A distinguished name of nothing but a CN. */
export function commonName(text: string): Uint8Array {
  return sequence(setOf(sequence(oid(OID.commonName), utf8String(text))));
}

export interface CertificateSpec {
  /** Distinguished names in DER. */
  readonly issuer: Uint8Array;
  readonly subject: Uint8Array;
  /** SubjectPublicKeyInfo in DER. */
  readonly publicKey: Uint8Array;
  /** Both in milliseconds since 1970; kept to the second. */
  readonly notBeforeMs: number;
  readonly notAfterMs: number;
  readonly extensions: readonly Uint8Array[];
  /** Of the issuer, a P-256 key in PEM. */
  readonly signingKey: string;
}

/** A certificate of X.509 version 3 with a random serial number, in DER. */
export function signCertificate(spec: CertificateSpec): Uint8Array {
  const algorithm = sequence(oid(OID.ecdsaWithSha256));
  const serial = randomBytes(SERIAL_BYTES);
  serial[0] = (serial[0]! & 0x7f) | 0x01;
  const body = sequence(
    explicit(0, integer(X509_V3)),
    integer(serial),
    algorithm,
    spec.issuer,
    sequence(time(spec.notBeforeMs), time(spec.notAfterMs)),
    spec.subject,
    spec.publicKey,
    explicit(3, sequence(...spec.extensions)),
  );
  const signature = sign("sha256", body, createPrivateKey(spec.signingKey));
  return sequence(body, algorithm, bitString(new Uint8Array(signature)));
}

export function certificatePem(der: Uint8Array): string {
  return encodePem("CERTIFICATE", der);
}

function extension(id: string, isCritical: boolean, value: Uint8Array): Uint8Array {
  const critical = isCritical ? [TRUE] : [];
  return sequence(oid(id), ...critical, octetString(value));
}

/** `authority` null: not a certificate that signs others. */
export function basicConstraints(
  authority: { readonly pathLength: number | null } | null,
): Uint8Array {
  const length = authority?.pathLength ?? null;
  const path = length === null ? [] : [integer(Uint8Array.of(length))];
  const parts = authority === null ? [] : [TRUE, ...path];
  return extension(OID.basicConstraints, true, sequence(...parts));
}

export function keyUsage(...uses: readonly KeyUsage[]): Uint8Array {
  const bits = uses.reduce((sum, use) => sum | (0x80 >> KEY_USAGE[use]), 0);
  const unused = Math.clz32(bits & -bits) ^ 31;
  return extension(OID.keyUsage, true, bitString(Uint8Array.of(bits), unused));
}

/** By OID. */
export function extendedKeyUsage(...uses: readonly string[]): Uint8Array {
  return extension(OID.extendedKeyUsage, false, sequence(...uses.map(oid)));
}

export interface WrittenName {
  readonly kind: Exclude<NameKind, "other" | "x400" | "directory" | "edi">;
  /** Characters up to U+00FF, each of them a byte. */
  readonly value: string;
}

export function subjectAltName(...names: readonly WrittenName[]): Uint8Array {
  const parts = names.map(({ kind, value }) =>
    element(primitiveTag(NAME_KINDS.indexOf(kind)), Buffer.from(value, "latin1")),
  );
  return extension(OID.subjectAltName, false, sequence(...parts));
}

/** RFC 5280, 4.2.1.2, method 1, but with SHA-256 cut to 160 bits (RFC 7093). */
function keyIdentifier(publicKey: Uint8Array): Uint8Array {
  return new Uint8Array(createHash("sha256").update(publicKey).digest().subarray(0, 20));
}

export function subjectKeyIdentifier(publicKey: Uint8Array): Uint8Array {
  return extension(OID.subjectKeyIdentifier, false, octetString(keyIdentifier(publicKey)));
}

export function authorityKeyIdentifier(publicKey: Uint8Array): Uint8Array {
  const id = element(primitiveTag(0), keyIdentifier(publicKey));
  return extension(OID.authorityKeyIdentifier, false, sequence(id));
}
