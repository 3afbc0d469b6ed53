import {
  constructedTag,
  DerReader,
  latin,
  NotDer,
  readBoolean,
  readIntegerBytes,
  readOid,
  readSmallInteger,
  readTime,
  TAG,
} from "./der-reader.ts";
import { KEY_USAGE, type KeyUsage, NAME_KINDS, type NameKind, OID } from "./oids.ts";

/** Longer certificates are refused unread. */
export const CERTIFICATE_BYTES_MAX = 16 * 1024;
const NAMES_MAX = 64;
const EXTENSIONS_MAX = 64;

export interface ReadName {
  readonly kind: NameKind;
  /** Its bytes as characters of the same numbers. */
  readonly value: string;
}

/** What trust looks at, taken from the bytes that were signed. */
export interface ReadCertificate {
  /** Whole elements, so that equal bytes are equal names. */
  readonly issuer: Uint8Array;
  readonly subject: Uint8Array;
  readonly notBeforeMs: number;
  readonly notAfterMs: number;
  /** Of the subjectAltName alone; a CN is no name. */
  readonly names: readonly ReadName[];
  /** It signs others; `pathLength`: so many more authorities may stand below. */
  readonly authority: { readonly pathLength: number | null } | null;
  /** Null: not restricted. */
  readonly keyUsage: ReadonlySet<KeyUsage> | null;
  /** OIDs; null: not restricted. */
  readonly extendedKeyUsage: readonly string[] | null;
  /** Critical extensions that this reader does not know: it must not be believed. */
  readonly unknownCritical: readonly string[];
}

export type CertificateRead =
  | { readonly ok: true; readonly certificate: ReadCertificate }
  /** `why` goes on after "the certificate". */
  | { readonly ok: false; readonly why: string };

/** Reads one certificate, to its last byte. Signatures are not looked at. */
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

/** The value of one extension: a sequence and nothing behind it. */
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
      throw new NotDer("a name is of no known kind");
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
    if (length !== null) throw new NotDer(`${what} give a length to no authority`);
    return null;
  }
  return { pathLength: length === null ? null : readSmallInteger(length, what) };
}

function readKeyUsage(value: Uint8Array): ReadonlySet<KeyUsage> {
  const what = "the keyUsage";
  const outside = new DerReader(value);
  const [unused, ...bytes] = outside.take(TAG.bitString, what);
  outside.end(what);
  if (unused === undefined || unused > 7 || bytes.length > 2) throw new NotDer(`${what} is none`);
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
