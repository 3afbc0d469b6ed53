import { createPrivateKey, timingSafeEqual, X509Certificate } from "node:crypto";
import { open, readFile } from "node:fs/promises";
import type { AccessConfig } from "../config/index.ts";
import { ROLES, type Role } from "../control/index.ts";
import { HearthError, messageOf } from "../core/index.ts";
import type { Access } from "./authorization.ts";

/** Who may do what, as the configuration and the files that it names have it. */
export interface ReadAccess {
  readonly access: Access;
  /** What an operator should know of the files, a line each. */
  readonly warnings: readonly string[];
  /**
   * Reads the tokens again: those that are gone open nothing any more. Returns warnings as above.
   * Throws CONFIG_INVALID and changes nothing where a file is refused.
   */
  reload(): Promise<readonly string[]>;
}

type Limits = "connectionsMax" | "bodyBudgetBytes" | "bodyTimeoutMs";

/** Throws CONFIG_INVALID where a file cannot be read, or holds something else. */
export async function readAccess(config: Omit<AccessConfig, Limits>): Promise<ReadAccess> {
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

/** A token as a file has it, with whom it stands for. */
export interface TokenEntry {
  readonly name: string;
  readonly role: Role;
  readonly token: string;
}

export interface TokenFiles {
  /** Its first line may do everything. */
  readonly tokenFile: string | null;
  /** Lines of a name, a role and a token. */
  readonly tokensFile: string | null;
}

export interface TokenList {
  readonly entries: readonly TokenEntry[];
  /** What an operator should know of the files, a line each. */
  readonly warnings: readonly string[];
}

const TOKEN_FILE_BYTES_MAX = 4096;
const TOKENS_FILE_BYTES_MAX = 256 * 1024;
const TOKENS_MAX = 1_000;
const TOKEN_CHARACTERS_MIN = 16;
/** RFC 6750, section 2.1. */
const TOKEN = /^[A-Za-z0-9._~+/-]+=*$/;
const NAME = /^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$/;
/** Callers who showed no token go by these. */
const RESERVED: ReadonlySet<string> = new Set(["anybody", "certificate", "local", "token_file"]);
const OTHERS_MAY_READ = 0o004;

/**
 * All tokens of both files; null: there is neither. Throws CONFIG_INVALID, naming the line and
 * never the token.
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
  if (entries.length === 0) warnings.push(`${tokensFile} holds no token: nobody is let in`);
  return { entries, warnings };
}

function firstLine(path: string, text: string): string {
  const token = text.split("\n", 1)[0]!.trim();
  if (isToken(token)) return token;
  const what = `the first line of ${path} is no bearer token`;
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
    const words = raw.trim().split(/\s+/);
    if (words[0] === "" || words[0]!.startsWith("#")) continue;
    const line = index + 1;
    const [name, role, token] = words as [string, string | undefined, string | undefined];
    if (words.length !== 3) {
      throw refuse(line, `${words.length} words`, "write a name, a role and a token");
    }
    if (!NAME.test(name)) throw refuse(line, "no name", "use letters, digits and ._@-, 64 at most");
    if (RESERVED.has(name)) throw refuse(line, `the name ${name}`, "use another name");
    if (!isRole(role)) throw refuse(line, "no role", `use one of ${ROLES.join(", ")}`);
    if (!isToken(token!)) {
      const fix = `use at least ${TOKEN_CHARACTERS_MIN} letters, digits or ._~+/-`;
      throw refuse(line, "no bearer token", fix);
    }
    entries.push({ name, role, token: token! });
  }
  if (entries.length <= TOKENS_MAX) return entries;
  throw refuse(1, `${entries.length} tokens`, `use ${TOKENS_MAX} at most`);
}

function isRole(word: string | undefined): word is Role {
  return (ROLES as readonly (string | undefined)[]).includes(word);
}

/** A token with two names would speak for whichever comes last. */
function mustDiffer(entries: readonly TokenEntry[]): void {
  const nameOf = new Map<string, string>();
  for (const { name, token } of entries) {
    const other = nameOf.get(token);
    if (other !== undefined) {
      throw new HearthError("CONFIG_INVALID", `${other} and ${name} have the same token`, {
        fix: "give each line of the token files a token of its own",
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
    throw new HearthError("CONFIG_INVALID", `${path} cannot be read: ${messageOf(cause)}`, {
      cause,
      fix: `let ${key} name a file that the agent's user may read`,
    });
  }
}

/** For whom a token speaks. */
interface TokenHolder {
  readonly name: string;
  readonly role: Role;
}

interface Known extends TokenHolder {
  readonly digest: Uint8Array;
}

type Compare = (a: Uint8Array, b: Uint8Array) => boolean;

/** The tokens that are good now. Kept as digests. */
export class Tokens {
  readonly #isEqual: Compare;
  #known: readonly Known[] = [];

  constructor(entries: readonly TokenEntry[], isEqual: Compare = timingSafeEqual) {
    this.#isEqual = isEqual;
    this.replace(entries);
  }

  /** From now on these and no others. */
  replace(entries: readonly TokenEntry[]): void {
    this.#known = entries.map(({ name, role, token }) => ({ name, role, digest: digestOf(token) }));
  }

  /**
   * Whose token an `Authorization` header carries; null: nobody's. Digests of equal length are
   * compared in constant time, and with every token, so that the answer's delay tells neither how
   * much of a token was right, nor its length, nor whose it is.
   */
  find(header: string | null): TokenHolder | null {
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
  /** With its key; null: plain HTTP. */
  readonly tlsCertFile: string | null;
  readonly tlsKeyFile: string | null;
  /** Null: callers need no certificate. */
  readonly tlsClientCaFile: string | null;
}

/** What a server needs to speak HTTPS, in PEM. */
export interface ServerTls {
  readonly cert: string;
  readonly key: string;
  /** Who signs certificates for callers; null: they need none. */
  readonly clientCa: string | null;
}

/**
 * Null: plain HTTP. Throws CONFIG_INVALID where a file cannot be read, or certificate and key are
 * no pair.
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
      fix: "let api.tls_key_file name the key that the certificate was made for",
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

/** The library's own words may quote the file; ours do not. */
function refusing<T>(path: string, what: string, parse: () => T): T {
  try {
    return parse();
  } catch (cause) {
    throw new HearthError("CONFIG_INVALID", `${path} does not begin with ${what} in PEM`, {
      cause,
      fix: `write ${what} in PEM into it, without a passphrase`,
    });
  }
}

async function read(path: string, key: string): Promise<string> {
  try {
    return await readFile(path, "utf8");
  } catch (cause) {
    throw new HearthError("CONFIG_INVALID", `${path} cannot be read: ${messageOf(cause)}`, {
      cause,
      fix: `let ${key} name a file that the agent's user may read`,
    });
  }
}
