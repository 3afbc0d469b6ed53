import { createPrivateKey, timingSafeEqual, X509Certificate } from "node:crypto";
import { open, readFile } from "node:fs/promises";
import type { AccessConfig } from "../config/index.ts";
import { ROLES, type Role } from "../control/index.ts";
import { HearthError, messageOf } from "../core/index.ts";
import type { Access } from "./authorization.ts";

/** Access rules of a server, built from the configuration and the files that it names. */
export interface ReadAccess {
  readonly access: Access;
  /** Problems of the files that the operator should know, one line each. */
  readonly warnings: readonly string[];
  /**
   * Reads the token files again and replaces the valid tokens by those listed. Returns warnings.
   * Throws CONFIG_INVALID and changes nothing if a file is refused.
   */
  reload(): Promise<readonly string[]>;
}

/** Reads the access rules. Throws CONFIG_INVALID if a file cannot be read or is not valid. */
export async function readAccess(config: AccessConfig): Promise<ReadAccess> {
  const list = await readTokens(config);
  const tokens = list === null ? null : new Tokens(list.entries);
  const tls = await readTls(config);
  const { loopbackRole, tlsClientRole: clientRole } = config;
  return {
    access: { tokens, tls, loopbackRole, clientRole },
    warnings: list?.warnings ?? [],
    async reload() {
      const next = await readTokens(config);
      if (tokens === null || next === null) return [];
      tokens.replace(next.entries);
      return next.warnings;
    },
  };
}

/** A token of a file, with its name and role. */
export interface TokenEntry {
  readonly name: string;
  readonly role: Role;
  readonly token: string;
}

export interface TokenFiles {
  /** Path of a file whose first line is a token with all roles. */
  readonly tokenFile: string | null;
  /** Path of a file with lines of a name, a role and a token. */
  readonly tokensFile: string | null;
}

export interface TokenList {
  readonly entries: readonly TokenEntry[];
  /** Problems of the files that the operator should know, one line each. */
  readonly warnings: readonly string[];
}

const TOKEN_FILE_BYTES_MAX = 4096;
const TOKENS_FILE_BYTES_MAX = 256 * 1024;
const TOKENS_MAX = 1_000;
const TOKEN_CHARACTERS_MIN = 16;
/** Syntax of a bearer token (RFC 6750, section 2.1). */
const TOKEN = /^[A-Za-z0-9._~+/-]+=*$/;
const NAME = /^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$/;
/** Names that callers without a listed token have. A token must not use them. */
const RESERVED: ReadonlySet<string> = new Set(["anybody", "certificate", "local", "token_file"]);
const OTHERS_MAY_READ = 0o004;

/**
 * Reads all tokens of both files. Null if neither is configured. The message of CONFIG_INVALID
 * contains the line's number, never a token.
 */
export async function readTokens(files: TokenFiles): Promise<TokenList | null> {
  const { tokenFile, tokensFile } = files;
  if (tokenFile === null && tokensFile === null) return null;
  const entries: TokenEntry[] = [];
  const warnings: string[] = [];
  if (tokenFile !== null) {
    const file = await readFileStart(tokenFile, TOKEN_FILE_BYTES_MAX, "api.token_file");
    entries.push({ name: "token_file", role: "purge", token: firstLine(tokenFile, file.text) });
    warnings.push(...warningsOf(tokenFile, file.mode));
  }
  if (tokensFile !== null) {
    const file = await readFileStart(tokensFile, TOKENS_FILE_BYTES_MAX + 1, "api.tokens_file");
    entries.push(...parseTokens(tokensFile, file.text));
    warnings.push(...warningsOf(tokensFile, file.mode));
  }
  mustDiffer(entries);
  if (entries.length === 0)
    warnings.push(`${tokensFile} contains no token: all requests are refused`);
  return { entries, warnings };
}

function firstLine(path: string, text: string): string {
  const token = text.split("\n", 1)[0].trim();
  if (isToken(token)) return token;
  const what = `the first line of ${path} is not a bearer token`;
  throw new HearthError("CONFIG_INVALID", what, {
    fix: `write at least ${TOKEN_CHARACTERS_MIN} letters, digits or ._~+/- into it`,
  });
}

function isToken(text: string): boolean {
  return text.length >= TOKEN_CHARACTERS_MIN && TOKEN.test(text);
}

function parseTokens(path: string, text: string): TokenEntry[] {
  const refuse = (line: number, what: string, fix: string) =>
    new HearthError("CONFIG_INVALID", `${path}, line ${line}: ${what}`, { fix });
  if (Buffer.byteLength(text) > TOKENS_FILE_BYTES_MAX) {
    throw refuse(1, `the file is longer than ${TOKENS_FILE_BYTES_MAX} bytes`, "shorten it");
  }
  const entries: TokenEntry[] = [];
  for (const [index, raw] of text.split("\n").entries()) {
    const parts = raw.trim().split(/\s+/);
    if (parts[0] === "" || parts[0].startsWith("#")) continue;
    const line = index + 1;
    const [name, role, token] = parts as [string, string | undefined, string | undefined];
    if (parts.length !== 3) {
      throw refuse(line, `${parts.length} words`, "use the form NAME ROLE TOKEN");
    }
    if (!NAME.test(name))
      throw refuse(line, "not a name", "use letters, digits and ._@-, 64 at most");
    if (RESERVED.has(name)) throw refuse(line, `the name ${name}`, "use another name");
    if (!isRole(role)) throw refuse(line, "not a role", `use one of ${ROLES.join(", ")}`);
    if (!isToken(token!)) {
      const fix = `use at least ${TOKEN_CHARACTERS_MIN} letters, digits or ._~+/-`;
      throw refuse(line, "not a bearer token", fix);
    }
    entries.push({ name, role, token: token! });
  }
  if (entries.length <= TOKENS_MAX) return entries;
  throw refuse(1, `${entries.length} tokens`, `use ${TOKENS_MAX} at most`);
}

function isRole(word: string | undefined): word is Role {
  return (ROLES as readonly (string | undefined)[]).includes(word);
}

/** Refuses a token that occurs twice, because its name and role would be ambiguous. */
function mustDiffer(entries: readonly TokenEntry[]): void {
  const nameOf = new Map<string, string>();
  for (const { name, token } of entries) {
    const other = nameOf.get(token);
    if (other !== undefined) {
      throw new HearthError("CONFIG_INVALID", `${other} and ${name} have the same token`, {
        fix: "use a different token in each line of the token files",
      });
    }
    nameOf.set(token, name);
  }
}

function warningsOf(path: string, mode: number): string[] {
  if ((mode & OTHERS_MAY_READ) === 0) return [];
  return [`${path} can be read by every user of this host: chmod o-r ${path}`];
}

async function readFileStart(
  path: string,
  bytesMax: number,
  key: string,
): Promise<{ readonly text: string; readonly mode: number }> {
  try {
    await using file = await open(path, "r");
    const { mode } = await file.stat();
    const buffer = new Uint8Array(bytesMax);
    const { bytesRead } = await file.read(buffer, 0, bytesMax, 0);
    return { text: new TextDecoder().decode(buffer.subarray(0, bytesRead)), mode };
  } catch (cause) {
    throw unreadable(path, key, cause);
  }
}

/** Name and role of the caller that presents a token. */
interface TokenIdentity {
  readonly name: string;
  readonly role: Role;
}

interface Known extends TokenIdentity {
  readonly digest: Uint8Array;
}

type Compare = (a: Uint8Array, b: Uint8Array) => boolean;

/** The valid tokens. Only their digests are kept in memory. */
export class Tokens {
  readonly #isEqual: Compare;
  #known: readonly Known[] = [];

  constructor(entries: readonly TokenEntry[], isEqual: Compare = timingSafeEqual) {
    this.#isEqual = isEqual;
    this.replace(entries);
  }

  /** Replaces all valid tokens. */
  replace(entries: readonly TokenEntry[]): void {
    this.#known = entries.map(({ name, role, token }) => ({ name, role, digest: digestOf(token) }));
  }

  /**
   * Finds the token in an `Authorization` header. Null if it is not valid. Compares digests of
   * equal length, in constant time, and with every valid token, so that the time taken reveals
   * nothing about a token.
   */
  find(header: string | null): TokenIdentity | null {
    const match = /^Bearer +(\S+)$/i.exec(header ?? "");
    const given = digestOf(match?.[1] ?? "");
    let found: Known | null = null;
    for (const known of this.#known) found = this.#isEqual(given, known.digest) ? known : found;
    return found === null ? null : { name: found.name, role: found.role };
  }
}

function digestOf(text: string): Uint8Array {
  return new Bun.CryptoHasher("sha256").update(text).digest();
}

export interface TlsFiles {
  /** Path of the certificate file. It requires a key file. Null: the server uses plain HTTP. */
  readonly tlsCertFile: string | null;
  readonly tlsKeyFile: string | null;
  /** Path of the file with the CA of client certificates. Null: callers need no certificate. */
  readonly tlsClientCaFile: string | null;
}

/** Certificate and private key of an HTTPS server, in PEM. */
export interface ServerTls {
  readonly cert: string;
  readonly key: string;
  /** CA that must have signed the callers' certificates, in PEM. Null: callers need none. */
  readonly clientCa: string | null;
}

/**
 * Reads the TLS files. Null: the server uses plain HTTP. Throws CONFIG_INVALID if a file cannot be
 * read, or if certificate and key do not match.
 */
export async function readTls(files: TlsFiles): Promise<ServerTls | null> {
  const { tlsCertFile: certFile, tlsKeyFile: keyFile, tlsClientCaFile: clientCaFile } = files;
  if (certFile === null || keyFile === null) return null;
  const cert = await read(certFile, "api.tls_cert_file");
  const key = await read(keyFile, "api.tls_key_file");
  const certificate = certificateOf(certFile, cert);
  const isPair = refusing(keyFile, "a private key", () =>
    certificate.checkPrivateKey(createPrivateKey(key)),
  );
  if (!isPair) {
    throw new HearthError("CONFIG_INVALID", `${keyFile} is not the key of ${certFile}`, {
      fix: "set api.tls_key_file to the key of this certificate",
    });
  }
  if (clientCaFile === null) return { cert, key, clientCa: null };
  const clientCa = await read(clientCaFile, "api.tls_client_ca_file");
  certificateOf(clientCaFile, clientCa);
  return { cert, key, clientCa };
}

function certificateOf(path: string, pem: string): X509Certificate {
  return refusing(path, "a certificate", () => new X509Certificate(pem));
}

/** Parses a file. Replaces an error of the library, whose message may quote the file. */
function refusing<T>(path: string, what: string, parse: () => T): T {
  try {
    return parse();
  } catch (cause) {
    throw new HearthError("CONFIG_INVALID", `${path} does not begin with ${what} in PEM`, {
      cause,
      fix: `store ${what} in it, as PEM without a passphrase`,
    });
  }
}

async function read(path: string, key: string): Promise<string> {
  try {
    return await readFile(path, "utf8");
  } catch (cause) {
    throw unreadable(path, key, cause);
  }
}

function unreadable(path: string, key: string, cause: unknown): HearthError {
  return new HearthError("CONFIG_INVALID", `${path} cannot be read: ${messageOf(cause)}`, {
    cause,
    fix: `set ${key} to a file that the agent's user can read`,
  });
}
