import {
  createHash,
  createPrivateKey,
  createPublicKey,
  generateKeyPairSync,
  type KeyObject,
  randomBytes,
  sign,
  X509Certificate,
} from "node:crypto";
import { AsnConvert, OctetString } from "@peculiar/asn1-schema";
import {
  AlgorithmIdentifier,
  AttributeTypeAndValue,
  AttributeValue,
  AuthorityKeyIdentifier,
  BasicConstraints,
  Certificate,
  ExtendedKeyUsage,
  Extension,
  Extensions,
  GeneralName,
  KeyUsage as KeyUsageBits,
  KeyUsageFlags,
  Name,
  RelativeDistinguishedName,
  SubjectAlternativeName,
  SubjectKeyIdentifier,
  SubjectPublicKeyInfo,
  TBSCertificate,
  Validity,
  Version,
} from "@peculiar/asn1-x509";

/** Object identifiers defined by RFC 5280 and RFC 5480. */
export const OID = {
  commonName: "2.5.4.3",
  ecdsaWithSha256: "1.2.840.10045.4.3.2",
  subjectKeyIdentifier: "2.5.29.14",
  keyUsage: "2.5.29.15",
  subjectAltName: "2.5.29.17",
  basicConstraints: "2.5.29.19",
  nameConstraints: "2.5.29.30",
  policyConstraints: "2.5.29.36",
  authorityKeyIdentifier: "2.5.29.35",
  extendedKeyUsage: "2.5.29.37",
  serverAuth: "1.3.6.1.5.5.7.3.1",
  clientAuth: "1.3.6.1.5.5.7.3.2",
} as const;

/** For each kind of name, the field of the ASN.1 library's `GeneralName` that contains it. */
const NAME_FIELDS = {
  uri: "uniformResourceIdentifier",
  dns: "dNSName",
  email: "rfc822Name",
} as const;
export type WrittenNameKind = keyof typeof NAME_FIELDS;
const NAME_KINDS = Object.keys(NAME_FIELDS) as WrittenNameKind[];

export interface WrittenName {
  readonly kind: WrittenNameKind;
  /** Bytes of the name, each as a character U+0000 to U+00FF. */
  readonly value: string;
}

export interface ReadName {
  /** `other`: a kind of name that Hearth does not check. Its value is empty. */
  readonly kind: WrittenNameKind | "other";
  /** Bytes of the name, each as a character U+0000 to U+00FF. */
  readonly value: string;
}

export const KEY_USAGE = {
  digitalSignature: KeyUsageFlags.digitalSignature,
  certSign: KeyUsageFlags.keyCertSign,
  crlSign: KeyUsageFlags.cRLSign,
} as const;
export type KeyUsage = keyof typeof KEY_USAGE;

const LINE_CHARACTERS = 64;
const BLOCK = /-----BEGIN ([A-Z0-9 ]+)-----\s([A-Za-z0-9+/=\s]*?)-----END \1-----/g;

export function encodePem(label: string, der: Uint8Array): string {
  const text = Buffer.from(der).toString("base64");
  const lines = text.match(new RegExp(`.{1,${LINE_CHARACTERS}}`, "g")) ?? [];
  return `-----BEGIN ${label}-----\n${lines.join("\n")}\n-----END ${label}-----\n`;
}

/** Decodes all PEM blocks with this label, in order. Ignores other text. */
export function decodePem(label: string, text: string): Uint8Array[] {
  return [...text.matchAll(BLOCK)]
    .filter(([, found]) => found === label)
    .map(([, , body]) => new Uint8Array(Buffer.from(body!, "base64")));
}

/** Maximum size of a certificate in bytes. Larger ones are refused without being parsed. */
export const CERTIFICATE_BYTES_MAX = 16 * 1024;
const NAMES_MAX = 64;
const EXTENSIONS_MAX = 64;

/** A certificate in a PEM text, as DER and decoded. */
export interface FoundCertificate {
  readonly der: Uint8Array;
  readonly certificate: ReadCertificate;
}

/** Decodes the first certificate in a PEM text. Null if there is none, or it is invalid. */
export function firstCertificate(pem: string): FoundCertificate | null {
  const [der] = decodePem("CERTIFICATE", pem);
  const read = der === undefined ? null : readCertificate(der);
  return der !== undefined && read?.ok ? { der, certificate: read.certificate } : null;
}

/**
 * Returns whether the private key (PEM) belongs to the certificate. Null if the key cannot be read.
 */
export function isKeyOf(certificate: Uint8Array | string, key: string): boolean | null {
  let privateKey: KeyObject;
  try {
    privateKey = createPrivateKey(key);
  } catch {
    // The library's error is discarded, because its message may contain the key.
    return null;
  }
  return new X509Certificate(certificate).checkPrivateKey(privateKey);
}

/** Fields of a certificate that Hearth checks, decoded from the part that the issuer signed. */
export interface ReadCertificate {
  /** Distinguished names as complete DER elements. Two names are equal if their bytes are equal. */
  readonly issuer: Uint8Array;
  readonly subject: Uint8Array;
  readonly notBeforeMs: number;
  readonly notAfterMs: number;
  /** Names in the subjectAltName extension. The CN in `subject` is ignored. */
  readonly names: readonly ReadName[];
  /**
   * Null if the certificate must not sign others. `pathLength`: number of authorities permitted
   * below it, or null without a limit.
   */
  readonly authority: { readonly pathLength: number | null } | null;
  /** Permitted uses of the key. Null if all are permitted. */
  readonly keyUsage: ReadonlySet<KeyUsage> | null;
  /** Permitted purposes, as OIDs. Null if all are permitted. */
  readonly extendedKeyUsage: readonly string[] | null;
  /**
   * OIDs of critical extensions that this code does not know. If there are any, the certificate
   * must not be accepted.
   */
  readonly unknownCritical: readonly string[];
}

export type CertificateRead =
  | { readonly ok: true; readonly certificate: ReadCertificate }
  /** Failure. `why` completes a sentence that begins with "the certificate". */
  | { readonly ok: false; readonly why: string };

/**
 * Signals that a certificate cannot be read, with the reason. Thrown and caught in this file only.
 */
class Unreadable extends Error {}

/** Decodes one certificate, which must fill `der` completely. Does not verify signatures. */
export function readCertificate(der: Uint8Array): CertificateRead {
  if (der.length > CERTIFICATE_BYTES_MAX) {
    return { ok: false, why: `is longer than ${CERTIFICATE_BYTES_MAX} bytes` };
  }
  try {
    return { ok: true, certificate: read(der) };
  } catch (thrown) {
    if (!(thrown instanceof Unreadable)) throw thrown;
    return { ok: false, why: `cannot be read: ${thrown.message}` };
  }
}

function read(der: Uint8Array): ReadCertificate {
  const { tbsCertificate: body, signatureAlgorithm } = parse(der, Certificate, "it");
  must(body.version === Version.v3, "the version is not 3");
  must(body.signature.isEqual(signatureAlgorithm), "its two algorithms differ");
  const { notBefore, notAfter } = body.validity;
  const found = new Map<string, Extension>();
  for (const extension of body.extensions ?? []) {
    must(!found.has(extension.extnID), `extension ${extension.extnID} is there twice`);
    must(found.size < EXTENSIONS_MAX, "there are too many extensions");
    found.set(extension.extnID, extension);
  }
  const valueIn = <T>(id: string, type: new () => T): T | null => {
    const value = found.get(id)?.extnValue.buffer;
    return value === undefined ? null : parse(new Uint8Array(value), type, `extension ${id}`);
  };
  const usages = valueIn(OID.extendedKeyUsage, ExtendedKeyUsage);
  const critical = [...found.values()].filter((extension) => extension.critical);
  return {
    issuer: derOf(body.issuer),
    subject: derOf(body.subject),
    notBeforeMs: wholeSeconds(notBefore.getTime()),
    notAfterMs: wholeSeconds(notAfter.getTime()),
    names: namesOf(valueIn(OID.subjectAltName, SubjectAlternativeName)),
    authority: authorityOf(valueIn(OID.basicConstraints, BasicConstraints)),
    keyUsage: keyUsagesOf(valueIn(OID.keyUsage, KeyUsageBits)),
    extendedKeyUsage: usages === null ? null : [...usages],
    unknownCritical: critical.map(({ extnID }) => extnID).filter((id) => !KNOWN.has(id)),
  };
}

const KNOWN: ReadonlySet<string> = new Set([
  OID.subjectAltName,
  OID.basicConstraints,
  OID.keyUsage,
  OID.extendedKeyUsage,
]);

/**
 * Decodes one DER value. The ASN.1 library also accepts BER, in which a value has several
 * encodings. Therefore the value is encoded again, and accepted only if that yields the same bytes:
 * no other program can then read these bytes differently.
 */
function parse<T>(der: Uint8Array, type: new () => T, what: string): T {
  let value: T;
  let isSame: boolean;
  try {
    value = AsnConvert.parse(der, type);
    isSame = Buffer.compare(derOf(value), der) === 0;
  } catch {
    // The library's error is discarded, because its message may contain the bytes.
    throw new Unreadable(`${what} is not the DER encoding of a ${type.name}`);
  }
  must(isSame, `${what} is not the only DER encoding of its ${type.name}`);
  return value;
}

function derOf(value: unknown): Uint8Array {
  return new Uint8Array(AsnConvert.serialize(value));
}

function must(holds: boolean, why: string): asserts holds {
  if (!holds) throw new Unreadable(why);
}

/**
 * Converts a certificate's date to milliseconds since 1970. Throws if it has fractional seconds,
 * which RFC 5280, 4.1.2.5.2 forbids.
 */
function wholeSeconds(date: Date): number {
  const ms = date.getTime();
  must(ms % 1_000 === 0, "a date has fractional seconds");
  return ms;
}

function namesOf(list: SubjectAlternativeName | null): ReadName[] {
  if (list === null) return [];
  must(list.length > 0, "the subjectAltName is empty");
  must(list.length <= NAMES_MAX, "there are too many names");
  return list.map((name) => {
    const kind = NAME_KINDS.find((one) => name[NAME_FIELDS[one]] !== undefined);
    return kind === undefined
      ? { kind: "other", value: "" }
      : { kind, value: name[NAME_FIELDS[kind]]! };
  });
}

function authorityOf(constraints: BasicConstraints | null): ReadCertificate["authority"] {
  if (constraints === null) return null;
  const { cA, pathLenConstraint: pathLength = null } = constraints;
  must(cA || pathLength === null, "its path length is for authorities, but it is not one");
  if (!cA) return null;
  const isCount = pathLength === null || (Number.isSafeInteger(pathLength) && pathLength >= 0);
  must(isCount, "its path length is out of range");
  return { pathLength };
}

function keyUsagesOf(bits: KeyUsageBits | null): ReadonlySet<KeyUsage> | null {
  if (bits === null) return null;
  must(bits.value.byteLength > 0 && bits.value.byteLength <= 2, "the keyUsage is empty or long");
  const flags = bits.toNumber();
  const uses = Object.entries(KEY_USAGE) as [KeyUsage, number][];
  return new Set(uses.filter(([, flag]) => (flags & flag) !== 0).map(([use]) => use));
}

const SERIAL_BYTES = 16;

/** Generates a private key on the curve P-256. Returns it as PKCS#8 in PEM. */
export function generateKey(): string {
  const { privateKey } = generateKeyPairSync("ec", {
    namedCurve: "P-256",
    privateKeyEncoding: { type: "pkcs8", format: "pem" },
    publicKeyEncoding: { type: "spki", format: "der" },
  });
  return privateKey;
}

/** Returns the public key of a private key (PEM), as SubjectPublicKeyInfo in DER. */
export function publicKeyOf(key: string): Uint8Array {
  return new Uint8Array(createPublicKey(key).export({ type: "spki", format: "der" }));
}

/** Encodes a distinguished name that consists of a CN only, in DER. */
export function commonName(text: string): Uint8Array {
  const value = new AttributeValue({ utf8String: text });
  const attribute = new AttributeTypeAndValue({ type: OID.commonName, value });
  return derOf(new Name([new RelativeDistinguishedName([attribute])]));
}

export interface CertificateSpec {
  /** Distinguished names in DER. */
  readonly issuer: Uint8Array;
  readonly subject: Uint8Array;
  /** Public key as SubjectPublicKeyInfo in DER. */
  readonly publicKey: Uint8Array;
  /** Validity in milliseconds since 1970. The certificate contains whole seconds, rounded down. */
  readonly notBeforeMs: number;
  readonly notAfterMs: number;
  readonly extensions: readonly Extension[];
  /** Private P-256 key of the issuer in PEM. */
  readonly signingKey: string;
}

/** Creates an X.509 version 3 certificate with a random serial number. Returns it in DER. */
export function signCertificate(spec: CertificateSpec): Uint8Array {
  const algorithm = new AlgorithmIdentifier({ algorithm: OID.ecdsaWithSha256 });
  const serial = randomBytes(SERIAL_BYTES);
  serial[0] = (serial[0]! & 0x7f) | 0x01;
  const toDate = (ms: number) => new Date(Math.floor(ms / 1_000) * 1_000);
  const tbsCertificate = new TBSCertificate({
    version: Version.v3,
    serialNumber: bufferOf(serial),
    signature: algorithm,
    issuer: AsnConvert.parse(spec.issuer, Name),
    validity: new Validity({
      notBefore: toDate(spec.notBeforeMs),
      notAfter: toDate(spec.notAfterMs),
    }),
    subject: AsnConvert.parse(spec.subject, Name),
    subjectPublicKeyInfo: AsnConvert.parse(spec.publicKey, SubjectPublicKeyInfo),
    extensions: new Extensions([...spec.extensions]),
  });
  const signature = sign("sha256", derOf(tbsCertificate), createPrivateKey(spec.signingKey));
  return derOf(
    new Certificate({
      tbsCertificate,
      signatureAlgorithm: algorithm,
      signatureValue: bufferOf(signature),
    }),
  );
}

/** Returns the bytes as an ArrayBuffer of their own, as the ASN.1 library requires. */
function bufferOf(bytes: Uint8Array): ArrayBuffer {
  return new Uint8Array(bytes).buffer;
}

export function certificatePem(der: Uint8Array): string {
  return encodePem("CERTIFICATE", der);
}

/**
 * Creates a certificate extension. `value`: its content in DER, or an object of the ASN.1 library.
 */
export function extension(id: string, isCritical: boolean, value: object): Extension {
  const der = value instanceof Uint8Array ? value : derOf(value);
  const extnValue = new OctetString(bufferOf(der));
  return new Extension({ extnID: id, critical: isCritical, extnValue });
}

/**
 * Creates the basicConstraints extension. `authority`: null if the certificate must not sign
 * others.
 */
export function basicConstraints(authority: ReadCertificate["authority"]): Extension {
  const value = new BasicConstraints({ cA: authority !== null });
  if (authority?.pathLength != null) value.pathLenConstraint = authority.pathLength;
  return extension(OID.basicConstraints, true, value);
}

export function keyUsage(...uses: readonly KeyUsage[]): Extension {
  const flags = uses.reduce((sum, use) => sum | KEY_USAGE[use], 0);
  return extension(OID.keyUsage, true, new KeyUsageBits(flags));
}

/** Creates the extendedKeyUsage extension. `uses`: OIDs of the permitted purposes. */
export function extendedKeyUsage(...uses: readonly string[]): Extension {
  return extension(OID.extendedKeyUsage, false, new ExtendedKeyUsage([...uses]));
}

export function subjectAltName(...names: readonly WrittenName[]): Extension {
  const list = names.map(({ kind, value }) => new GeneralName({ [NAME_FIELDS[kind]]: value }));
  return extension(OID.subjectAltName, false, new SubjectAlternativeName(list));
}

/**
 * Computes a key identifier: RFC 5280, 4.2.1.2, method 1, but with SHA-256 truncated to 160 bits
 * (RFC 7093).
 */
function keyIdentifier(publicKey: Uint8Array): ArrayBuffer {
  return bufferOf(createHash("sha256").update(publicKey).digest().subarray(0, 20));
}

export function subjectKeyIdentifier(publicKey: Uint8Array): Extension {
  const value = new SubjectKeyIdentifier(keyIdentifier(publicKey));
  return extension(OID.subjectKeyIdentifier, false, value);
}

export function authorityKeyIdentifier(publicKey: Uint8Array): Extension {
  const id = new SubjectKeyIdentifier(keyIdentifier(publicKey));
  const value = new AuthorityKeyIdentifier({ keyIdentifier: id });
  return extension(OID.authorityKeyIdentifier, false, value);
}
