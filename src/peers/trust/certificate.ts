import {
  createHash,
  createPrivateKey,
  createPublicKey,
  generateKeyPairSync,
  randomBytes,
  sign,
} from "node:crypto";
import {
  bitString,
  constructedTag,
  DerReader,
  element,
  explicit,
  integer,
  latin,
  NotDer,
  octetString,
  oid,
  primitiveTag,
  readBoolean,
  readIntegerBytes,
  readOid,
  readSmallInteger,
  readTime,
  sequence,
  setOf,
  TAG,
  TRUE,
  time,
  utf8String,
} from "./der.ts";

/** Object identifiers of RFC 5280 and RFC 5480. */
export const OID = {
  commonName: "2.5.4.3",
  ecdsaWithSha256: "1.2.840.10045.4.3.2",
  subjectKeyIdentifier: "2.5.29.14",
  keyUsage: "2.5.29.15",
  subjectAltName: "2.5.29.17",
  basicConstraints: "2.5.29.19",
  nameConstraints: "2.5.29.30",
  authorityKeyIdentifier: "2.5.29.35",
  extendedKeyUsage: "2.5.29.37",
  serverAuth: "1.3.6.1.5.5.7.3.1",
  clientAuth: "1.3.6.1.5.5.7.3.2",
} as const;

/** Kinds of names in a subjectAltName, by tag number. */
export const NAME_KINDS = [
  "other",
  "email",
  "dns",
  "x400",
  "directory",
  "edi",
  "uri",
  "ip",
  "registered",
] as const;
export type NameKind = (typeof NAME_KINDS)[number];

/** Bits of keyUsage, by bit number. */
export const KEY_USAGE = { digitalSignature: 0, certSign: 5, crlSign: 6 } as const;
export type KeyUsage = keyof typeof KEY_USAGE;

const LINE_CHARACTERS = 64;
const BLOCK = /-----BEGIN ([A-Z0-9 ]+)-----\s([A-Za-z0-9+/=\s]*?)-----END \1-----/g;

export function encodePem(label: string, der: Uint8Array): string {
  const text = Buffer.from(der).toString("base64");
  const lines = text.match(new RegExp(`.{1,${LINE_CHARACTERS}}`, "g")) ?? [];
  return `-----BEGIN ${label}-----\n${lines.join("\n")}\n-----END ${label}-----\n`;
}

/** All blocks with this label, in order; other text is ignored. */
export function decodePem(label: string, text: string): Uint8Array[] {
  return [...text.matchAll(BLOCK)]
    .filter(([, found]) => found === label)
    .map(([, , body]) => new Uint8Array(Buffer.from(body!, "base64")));
}

/** Longer certificates are refused without reading them. */
export const CERTIFICATE_BYTES_MAX = 16 * 1024;
const NAMES_MAX = 64;
const EXTENSIONS_MAX = 64;

export interface ReadName {
  readonly kind: NameKind;
  /** The name's bytes as characters U+0000 to U+00FF. */
  readonly value: string;
}

/** Fields that authorization needs, from the signed bytes. */
export interface ReadCertificate {
  /** Complete DER elements, so that equal bytes mean equal names. */
  readonly issuer: Uint8Array;
  readonly subject: Uint8Array;
  readonly notBeforeMs: number;
  readonly notAfterMs: number;
  /** From the subjectAltName only; the CN is ignored. */
  readonly names: readonly ReadName[];
  /**
   * Null: must not sign others. `pathLength`: number of authorities allowed below; null: unlimited.
   */
  readonly authority: { readonly pathLength: number | null } | null;
  /** Null: unrestricted. */
  readonly keyUsage: ReadonlySet<KeyUsage> | null;
  /** OIDs; null: unrestricted. */
  readonly extendedKeyUsage: readonly string[] | null;
  /** Critical extensions that this reader does not know. The certificate must not be accepted. */
  readonly unknownCritical: readonly string[];
}

export type CertificateRead =
  | { readonly ok: true; readonly certificate: ReadCertificate }
  /** `why` completes a sentence that begins with "the certificate". */
  | { readonly ok: false; readonly why: string };

/** Reads one certificate, to its last byte. Does not verify signatures. */
export function readCertificate(der: Uint8Array): CertificateRead {
  if (der.length > CERTIFICATE_BYTES_MAX) {
    return { ok: false, why: `is longer than ${CERTIFICATE_BYTES_MAX} bytes` };
  }
  try {
    return { ok: true, certificate: read(der) };
  } catch (thrown) {
    if (!(thrown instanceof NotDer)) throw thrown;
    return { ok: false, why: `cannot be read: ${thrown.message}` };
  }
}

function read(der: Uint8Array): ReadCertificate {
  const outside = new DerReader(der);
  const whole = outside.inside(TAG.sequence, "the certificate");
  outside.end("the certificate");
  const body = whole.inside(TAG.sequence, "its body");
  const algorithm = whole.any("the signature's algorithm").whole;
  whole.take(TAG.bitString, "the signature");
  whole.end("the certificate");
  const version = body.inside(constructedTag(0), "the version");
  if (readSmallInteger(version.take(TAG.integer, "the version"), "the version") !== 2) {
    throw new NotDer("the version is not 3");
  }
  version.end("the version");
  readIntegerBytes(body.take(TAG.integer, "the serial number"), "the serial number");
  if (Buffer.compare(body.any("the algorithm").whole, algorithm) !== 0) {
    throw new NotDer("its two algorithms differ");
  }
  const issuer = nameIn(body, "the issuer");
  const validity = body.inside(TAG.sequence, "the validity");
  const notBeforeMs = readTime(validity.any("the begin"), "the begin");
  const notAfterMs = readTime(validity.any("the end"), "the end");
  validity.end("the validity");
  const subject = nameIn(body, "the subject");
  body.take(TAG.sequence, "the public key");
  const found = new Map<string, Extension>();
  if (!body.isAtEnd) readExtensions(body, found);
  body.end("its body");
  return { issuer, subject, notBeforeMs, notAfterMs, ...factsOf(found) };
}

function nameIn(body: DerReader, what: string): Uint8Array {
  const { tag, whole } = body.any(what);
  if (tag !== TAG.sequence) throw new NotDer(`${what} is not where it should be`);
  return whole;
}

interface Extension {
  readonly isCritical: boolean;
  readonly value: Uint8Array;
}

function readExtensions(body: DerReader, found: Map<string, Extension>): void {
  const around = body.inside(constructedTag(3), "the list of extensions");
  const list = around.inside(TAG.sequence, "the list of extensions");
  around.end("the list of extensions");
  while (!list.isAtEnd) {
    const one = list.inside(TAG.sequence, "an extension");
    const id = readOid(one.take(TAG.oid, "an extension's OID"), "an extension's OID");
    const critical = one.takeIf(TAG.boolean, "an extension's flag");
    const value = one.take(TAG.octetString, "an extension's value");
    one.end("an extension");
    if (found.has(id)) throw new NotDer(`extension ${id} is there twice`);
    if (found.size === EXTENSIONS_MAX) throw new NotDer("there are too many extensions");
    const isCritical = critical !== null && readBoolean(critical, "an extension's flag");
    found.set(id, { isCritical, value });
  }
}

type Facts = Pick<
  ReadCertificate,
  "names" | "authority" | "keyUsage" | "extendedKeyUsage" | "unknownCritical"
>;

const KNOWN: ReadonlySet<string> = new Set([
  OID.subjectAltName,
  OID.basicConstraints,
  OID.keyUsage,
  OID.extendedKeyUsage,
]);

function factsOf(found: ReadonlyMap<string, Extension>): Facts {
  const bytesOf = (id: string) => found.get(id)?.value ?? null;
  const names = bytesOf(OID.subjectAltName);
  const constraints = bytesOf(OID.basicConstraints);
  const usage = bytesOf(OID.keyUsage);
  const extended = bytesOf(OID.extendedKeyUsage);
  return {
    names: names === null ? [] : readNames(names),
    authority: constraints === null ? null : readAuthority(constraints),
    keyUsage: usage === null ? null : readKeyUsage(usage),
    extendedKeyUsage: extended === null ? null : readOids(extended),
    unknownCritical: [...found]
      .filter(([id, { isCritical }]) => isCritical && !KNOWN.has(id))
      .map(([id]) => id),
  };
}

/** The value of one extension: a single sequence. */
function valueReader(value: Uint8Array, what: string): DerReader {
  const outside = new DerReader(value);
  const inside = outside.inside(TAG.sequence, what);
  outside.end(what);
  return inside;
}

const CONTEXT = 0x80;
const CLASS_BITS = 0xc0;
const NUMBER_BITS = 0x1f;

function readNames(value: Uint8Array): ReadName[] {
  const list = valueReader(value, "the subjectAltName");
  const names: ReadName[] = [];
  while (!list.isAtEnd) {
    const { tag, body } = list.any("a name");
    const kind = NAME_KINDS[tag & NUMBER_BITS];
    if ((tag & CLASS_BITS) !== CONTEXT || kind === undefined) {
      throw new NotDer("a name is of an unknown kind");
    }
    if (names.length === NAMES_MAX) throw new NotDer("there are too many names");
    names.push({ kind, value: latin(body) });
  }
  if (names.length === 0) throw new NotDer("the subjectAltName is empty");
  return names;
}

function readAuthority(value: Uint8Array): { readonly pathLength: number | null } | null {
  const what = "the basicConstraints";
  const inside = valueReader(value, what);
  const flag = inside.takeIf(TAG.boolean, what);
  const length = inside.takeIf(TAG.integer, what);
  inside.end(what);
  if (flag === null || !readBoolean(flag, what)) {
    if (length !== null)
      throw new NotDer(`${what} give a path length to a certificate that is not an authority's`);
    return null;
  }
  return { pathLength: length === null ? null : readSmallInteger(length, what) };
}

function readKeyUsage(value: Uint8Array): ReadonlySet<KeyUsage> {
  const what = "the keyUsage";
  const outside = new DerReader(value);
  const [unused, ...bytes] = outside.take(TAG.bitString, what);
  outside.end(what);
  if (unused === undefined || unused > 7 || bytes.length > 2) throw new NotDer(`${what} is empty`);
  const has = (bit: number) => ((bytes[bit >> 3] ?? 0) & (0x80 >> (bit & 7))) !== 0;
  const uses = Object.entries(KEY_USAGE) as [KeyUsage, number][];
  return new Set(uses.filter(([, bit]) => has(bit)).map(([use]) => use));
}

function readOids(value: Uint8Array): string[] {
  const list = valueReader(value, "the extendedKeyUsage");
  const oids: string[] = [];
  while (!list.isAtEnd) oids.push(readOid(list.take(TAG.oid, "a usage"), "a usage"));
  return oids;
}

const SERIAL_BYTES = 16;
const X509_V3 = Uint8Array.of(2);

/** Generates a key on the curve P-256: PKCS#8 in PEM. */
export function generateKey(): string {
  const { privateKey } = generateKeyPairSync("ec", {
    namedCurve: "P-256",
    privateKeyEncoding: { type: "pkcs8", format: "pem" },
    publicKeyEncoding: { type: "spki", format: "der" },
  });
  return privateKey;
}

/** The SubjectPublicKeyInfo of a private key in PEM. */
export function publicKeyOf(key: string): Uint8Array {
  const spki = createPublicKey(key).export({ type: "spki", format: "der" });
  return new Uint8Array(spki);
}

/** A distinguished name with only a CN. */
export function commonName(text: string): Uint8Array {
  return sequence(setOf(sequence(oid(OID.commonName), utf8String(text))));
}

export interface CertificateSpec {
  /** Distinguished names in DER. */
  readonly issuer: Uint8Array;
  readonly subject: Uint8Array;
  /** SubjectPublicKeyInfo in DER. */
  readonly publicKey: Uint8Array;
  /** Both in milliseconds since 1970; truncated to seconds. */
  readonly notBeforeMs: number;
  readonly notAfterMs: number;
  readonly extensions: readonly Uint8Array[];
  /** The issuer's P-256 key in PEM. */
  readonly signingKey: string;
}

/** An X.509 version 3 certificate with a random serial number, in DER. */
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

/** `authority` null: the certificate must not sign others. */
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

/** Usages by OID. */
export function extendedKeyUsage(...uses: readonly string[]): Uint8Array {
  return extension(OID.extendedKeyUsage, false, sequence(...uses.map(oid)));
}

export interface WrittenName {
  readonly kind: Exclude<NameKind, "other" | "x400" | "directory" | "edi">;
  /** Bytes as characters U+0000 to U+00FF. */
  readonly value: string;
}

export function subjectAltName(...names: readonly WrittenName[]): Uint8Array {
  const parts = names.map(({ kind, value }) =>
    element(primitiveTag(NAME_KINDS.indexOf(kind)), Buffer.from(value, "latin1")),
  );
  return extension(OID.subjectAltName, false, sequence(...parts));
}

/** RFC 5280, 4.2.1.2, method 1, but with SHA-256 truncated to 160 bits (RFC 7093). */
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
