import {
  closeSync,
  existsSync,
  fsyncSync,
  linkSync,
  mkdirSync,
  openSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { dirname, join } from "node:path";
import { HearthError, isClusterName, messageOf, type WorkerId } from "../../core/index.ts";
import { clusterUri, dateText, fingerprintOf, type PeerName, peerUri } from "./authorize.ts";
import {
  authorityKeyIdentifier,
  basicConstraints,
  certificatePem,
  commonName,
  extendedKeyUsage,
  firstCertificate,
  generateKey,
  isKeyOf,
  keyUsage,
  OID,
  publicKeyOf,
  type ReadCertificate,
  signCertificate,
  subjectAltName,
  subjectKeyIdentifier,
} from "./certificate.ts";

/** A certificate and its key (PKCS#8), both in PEM. */
export interface KeyPair {
  readonly certificate: string;
  readonly key: string;
}

export interface Validity {
  readonly notBeforeMs: number;
  readonly notAfterMs: number;
}

/**
 * Creates a certificate authority that may sign hosts' certificates, but no further authorities.
 */
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
 * Issues a host's certificate for `key` (PEM), or for a new key if it is null. The worker id is
 * also the certificate's DNS name, which the QUIC library checks.
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

/** Returns the subject's distinguished name, in DER, of the first certificate in a PEM text. */
function subjectOf(pem: string): Uint8Array {
  const found = firstCertificate(pem);
  if (found !== null) return found.certificate.subject;
  throw new HearthError("CONFIG_INVALID", "the authority's certificate cannot be read as PEM");
}

const AUTHORITY = "ca";
/** File modes. All users may read certificates; only the owner may read keys. */
const CERTIFICATE_MODE = 0o644;
const KEY_MODE = 0o600;
const FOLDER_MODE = 0o700;

/** Certificate authority of a cluster, stored in a folder as `ca.crt` and `ca.key`. */
export interface AuthorityFolder {
  readonly cluster: string;
  readonly pair: KeyPair;
  readonly notAfterMs: number;
}

export interface WrittenPair {
  readonly certFile: string;
  readonly keyFile: string;
  readonly certificate: ReadCertificate;
  /** SHA-256 hash of the certificate in hex. */
  readonly fingerprint: string;
}

/**
 * Creates an authority in the folder `dir`. Throws USAGE if the folder already contains `ca.crt` or
 * `ca.key`.
 */
export function initAuthority(dir: string, cluster: string, validity: Validity): WrittenPair {
  makeFolder(dir);
  const { certFile, keyFile } = filesIn(dir, AUTHORITY);
  mustBeFree(keyFile, "an authority is made once: use another folder");
  mustBeFree(certFile, "an authority is made once: use another folder");
  const pair = makeAuthority({ cluster, validity });
  writeOnce(keyFile, pair.key);
  replace(certFile, pair.certificate);
  return written(certFile, keyFile, pair.certificate);
}

/**
 * Reads the authority in the folder `dir`. Throws USAGE if the folder does not contain one made by
 * `initAuthority`.
 */
export function openAuthority(dir: string): AuthorityFolder {
  const { certFile, keyFile } = filesIn(dir, AUTHORITY);
  const pair = { certificate: readText(certFile), key: readText(keyFile) };
  const { certificate } = written(certFile, keyFile, pair.certificate);
  const uri = certificate.names.find(({ kind }) => kind === "uri")?.value ?? "";
  const cluster = uri.slice(clusterUri("").length);
  const isOurs = isClusterName(cluster) && uri === clusterUri(cluster);
  if (certificate.authority === null || !isOurs) {
    throw refusal(`${certFile} is not the certificate of a cluster's authority`, INIT);
  }
  mustBePair(pair, certFile, keyFile);
  return { cluster, pair, notAfterMs: certificate.notAfterMs };
}

export interface Issued extends WrittenPair {
  readonly caFile: string;
  /** True if a new certificate was issued for a key that existed before. */
  readonly isRenewed: boolean;
}

/**
 * Issues a host's certificate: writes `<worker>.crt`, `<worker>.key` and the authority's `ca.crt`
 * to the folder `out`. The certificate expires no later than its authority. A key is never
 * overwritten: if the key exists, it gets a new certificate if `renew` is true; otherwise throws
 * USAGE.
 */
export function issueInto(
  out: string,
  authority: AuthorityFolder,
  options: { readonly worker: WorkerId; readonly validity: Validity; readonly renew: boolean },
): Issued {
  const { worker, validity, renew } = options;
  const { cluster, pair, notAfterMs } = authority;
  if (worker.toLowerCase() === AUTHORITY) {
    throw refusal(
      `the files of a worker named ${worker} would replace those of the authority`,
      "choose another worker name",
    );
  }
  if (notAfterMs <= validity.notBeforeMs) {
    throw refusal(`the authority expired at ${dateText(notAfterMs)}`, "make a new one");
  }
  makeFolder(out);
  const { certFile, keyFile } = filesIn(out, worker);
  const caFile = join(out, `${AUTHORITY}.crt`);
  mustBeSame(caFile, pair.certificate);
  const isRenewed = renew && existsSync(keyFile);
  if (!isRenewed) mustBeFree(keyFile, "use --renew to make a new certificate for the existing key");
  const issued = issueHost({
    authority: pair,
    name: { cluster, worker },
    key: isRenewed ? readText(keyFile) : null,
    validity: { ...validity, notAfterMs: Math.min(validity.notAfterMs, notAfterMs) },
  });
  if (!isRenewed) writeOnce(keyFile, issued.key);
  replace(caFile, pair.certificate);
  replace(certFile, issued.certificate);
  return { ...written(certFile, keyFile, issued.certificate), caFile, isRenewed };
}

const INIT = "name the folder that `hearth ca init` made";

function filesIn(dir: string, name: string) {
  return { certFile: join(dir, `${name}.crt`), keyFile: join(dir, `${name}.key`) };
}

function written(certFile: string, keyFile: string, pem: string): WrittenPair {
  const found = firstCertificate(pem);
  if (found === null) throw refusal(`${certFile} contains no PEM certificate`, INIT);
  const { der, certificate } = found;
  return { certFile, keyFile, certificate, fingerprint: fingerprintOf(der) };
}

function mustBePair({ certificate, key }: KeyPair, certFile: string, keyFile: string): void {
  const isPair = isKeyOf(certificate, key);
  if (isPair === null) throw refusal(`${keyFile} contains no readable PEM private key`, INIT);
  if (!isPair) throw refusal(`${keyFile} is not the key of ${certFile}`, INIT);
}

function mustBeFree(path: string, fix: string): void {
  if (existsSync(path)) throw refusal(`${path} already exists`, fix);
}

/** Throws USAGE if the folder already contains another authority's `ca.crt`. */
function mustBeSame(caFile: string, certificate: string): void {
  if (!existsSync(caFile) || readText(caFile) === certificate) return;
  throw refusal(`${caFile} belongs to another authority`, "choose another folder with --out");
}

function readText(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch (cause) {
    throw new HearthError("USAGE", `cannot read ${path}: ${messageOf(cause)}`, {
      cause,
      fix: INIT,
    });
  }
}

function refusal(what: string, fix: string): HearthError {
  return new HearthError("USAGE", what, { fix });
}

function makeFolder(path: string): void {
  mkdirSync(path, { recursive: true, mode: FOLDER_MODE });
}

/**
 * Writes a new file completely or not at all. Throws USAGE if the file exists, even if another
 * process has just created it.
 */
function writeOnce(path: string, text: string): void {
  const draft = writeDraft(path, text, KEY_MODE);
  try {
    linkSync(draft, path);
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException).code !== "EEXIST") throw cause;
    throw refusal(`${path} already exists`, "keys are never overwritten");
  } finally {
    rmSync(draft);
  }
  syncFolder(path);
}

function replace(path: string, text: string): void {
  renameSync(writeDraft(path, text, CERTIFICATE_MODE), path);
  syncFolder(path);
}

/**
 * Writes a temporary file next to `path` and returns its path. Removes the file if writing fails.
 */
function writeDraft(path: string, text: string, mode: number): string {
  const draft = `${path}.${process.pid}.tmp`;
  rmSync(draft, { force: true });
  const fd = openSync(draft, "wx", mode);
  try {
    writeFileSync(fd, text);
    fsyncSync(fd);
  } catch (thrown) {
    rmSync(draft, { force: true });
    throw thrown;
  } finally {
    closeSync(fd);
  }
  return draft;
}

/** Makes a file's directory entry durable, so that the file survives a power loss. */
function syncFolder(path: string): void {
  const fd = openSync(dirname(path), "r");
  try {
    fsyncSync(fd);
  } finally {
    closeSync(fd);
  }
}
