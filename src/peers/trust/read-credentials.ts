import { open } from "node:fs/promises";
import { createSecureContext } from "node:tls";
import { HearthError, messageOf } from "../../core/index.ts";
import type { Credentials } from "../trust.ts";
import type { PeerName } from "./authorize.ts";
import { createAuthorizer, dateText, maySign } from "./authorize.ts";
import { decodePem, type FoundCertificate, isKeyOf, readCertificate } from "./certificate.ts";

export interface CertificateFiles {
  /**
   * PEM file with the host's certificate, followed by those of its issuers that are not in
   * `caFile`.
   */
  readonly certFile: string;
  /** PEM file with the private key as PKCS#8, without a passphrase. */
  readonly keyFile: string;
  /** PEM file with the certificates of the trusted authorities. */
  readonly caFile: string;
}

export interface CredentialsRead {
  readonly credentials: Credentials;
  /** Warnings for the operator, one line each. */
  readonly warnings: readonly string[];
}

const FILE_BYTES_MAX = 1024 * 1024;
const OTHERS_MAY_READ = 0o004;

/**
 * Reads and verifies a host's certificate files. Throws CONFIG_INVALID with the file, the problem
 * and the fix, but never with the file's contents. Problems: an unreadable file, wrong contents, a
 * certificate of another worker, a key that does not match, invalid dates, a certificate that the
 * authorities did not sign, a key type that TLS does not support.
 */
export async function readCredentials(
  files: CertificateFiles,
  name: PeerName,
  wallMs: number,
): Promise<CredentialsRead> {
  const [certificates, key, authorities] = await Promise.all([
    readFileText(files.certFile, "peers.cert_file"),
    readFileText(files.keyFile, "peers.key_file"),
    readFileText(files.caFile, "peers.ca_file"),
  ]);
  const chain = certificatesIn(files.certFile, certificates.text);
  mustBeAuthorities(files.caFile, authorities.text, wallMs);
  mustBePair(files, chain[0].der, key.text);
  const credentials = {
    ...name,
    certificates: certificates.text,
    key: key.text,
    authorities: authorities.text,
    notAfterMs: Math.min(...chain.map(({ certificate }) => certificate.notAfterMs)),
  };
  mustBeOurs(files, credentials, chain[0].der, wallMs);
  mustServe(files, credentials);
  return { credentials, warnings: warningsOf(files, key.mode, authorities.text) };
}

/**
 * Decodes the certificates in a PEM text. Throws CONFIG_INVALID if there is none or one is invalid.
 */
function certificatesIn(path: string, text: string): FoundCertificate[] {
  const found = decodePem("CERTIFICATE", text).map((der, index) => {
    const read = readCertificate(der);
    if (read.ok) return { der, certificate: read.certificate };
    throw refusal(
      `${path}: certificate ${index + 1} ${read.why}`,
      "write X.509 version 3 certificates in PEM into it",
    );
  });
  if (found.length > 0) return found;
  throw refusal(`${path} contains no PEM certificate`, "write the certificate in PEM into it");
}

function mustBeAuthorities(path: string, text: string, wallMs: number): void {
  const found = certificatesIn(path, text);
  for (const [index, { certificate }] of found.entries()) {
    if (maySign(certificate)) continue;
    throw refusal(
      `${path}: certificate ${index + 1} is not an authority's`,
      "let peers.ca_file name the certificate of the cluster's authority, as `hearth ca init` " +
        "made it",
    );
  }
  const isGood = ({ certificate: { notBeforeMs, notAfterMs } }: FoundCertificate) =>
    notBeforeMs <= wallMs && wallMs <= notAfterMs;
  if (found.some(isGood)) return;
  const last = Math.max(...found.map(({ certificate }) => certificate.notAfterMs));
  const what =
    last < wallMs ? `the last expired at ${dateText(last)}` : "none of them is valid yet";
  throw refusal(
    `${path} contains no authority that is valid now: ${what}`,
    "check the clock of this host, or make a new authority and give it to all hosts",
  );
}

function mustBePair({ certFile, keyFile }: CertificateFiles, der: Uint8Array, key: string): void {
  const isPair = isKeyOf(der, key);
  if (isPair) return;
  if (isPair === null) {
    throw refusal(
      `${keyFile} contains no readable PEM private key`,
      "write the key in PEM into it, without a passphrase",
    );
  }
  throw refusal(
    `${keyFile} is not the key of ${certFile}`,
    "let peers.key_file name the key that the certificate was made for",
  );
}

/** Throws CONFIG_INVALID if peers would refuse this host's certificate. */
function mustBeOurs(
  { certFile, caFile }: CertificateFiles,
  credentials: Credentials,
  der: Uint8Array,
  wallMs: number,
): void {
  const authorized = createAuthorizer(credentials).authorize(der, credentials.worker, wallMs);
  if (authorized.ok) return;
  const { worker, cluster } = credentials;
  throw refusal(
    `${certFile} is not a certificate of the worker ${worker} of ${cluster} that ${caFile} makes ` +
      `valid: ${authorized.why}`,
    `make one with \`hearth ca issue CA_DIR --worker ${worker}\``,
  );
}

/**
 * Throws CONFIG_INVALID if TLS does not support the type of the key. A key can match its
 * certificate and still be unusable.
 */
function mustServe({ certFile }: CertificateFiles, credentials: Credentials): void {
  const { certificates: cert, key, authorities: ca } = credentials;
  try {
    createSecureContext({ cert, key, ca });
  } catch {
    throw refusal(
      `${certFile} and its key have a type that TLS does not support here`,
      "make a key on the curve P-256, or an RSA key of 2048 bits",
    );
  }
}

function warningsOf(files: CertificateFiles, keyMode: number, authorities: string): string[] {
  const warnings: string[] = [];
  const { keyFile, caFile } = files;
  if ((keyMode & OTHERS_MAY_READ) !== 0) {
    warnings.push(`${keyFile} can be read by every user of this host: chmod o-r ${keyFile}`);
  }
  if (/-----BEGIN [A-Z ]*PRIVATE KEY-----/.test(authorities)) {
    warnings.push(`${caFile} contains a private key, which no agent needs: remove it`);
  }
  return warnings;
}

function refusal(what: string, fix: string): HearthError {
  return new HearthError("CONFIG_INVALID", what, { fix });
}

async function readFileText(path: string, key: string): Promise<{ text: string; mode: number }> {
  try {
    await using file = await open(path, "r");
    const { mode, size } = await file.stat();
    if (size > FILE_BYTES_MAX) throw new Error(`it is longer than ${FILE_BYTES_MAX} bytes`);
    const buffer = new Uint8Array(FILE_BYTES_MAX);
    const { bytesRead } = await file.read(buffer, 0, FILE_BYTES_MAX, 0);
    return { text: new TextDecoder().decode(buffer.subarray(0, bytesRead)), mode };
  } catch (cause) {
    throw new HearthError("CONFIG_INVALID", `cannot read ${path}: ${messageOf(cause)}`, {
      cause,
      fix: `let ${key} name a file that the agent's user may read`,
    });
  }
}
