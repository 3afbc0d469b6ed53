import { createPrivateKey, X509Certificate } from "node:crypto";
import { readFile } from "node:fs/promises";
import { HearthError, messageOf, type NkeyUser, userOfSeed } from "../core/index.ts";
import type { Login } from "./open-bus.ts";

/** Files that prove who we are; at most one of them. Read anew with each connection. */
export interface CredentialFiles {
  /** The token on its first line. */
  readonly tokenFile: string | null;
  /** User and password on two lines. */
  readonly userFile: string | null;
  /** As `nsc` writes it: JWT and seed. */
  readonly credsFile: string | null;
  /** The seed, beginning with SU. */
  readonly nkeyFile: string | null;
}

/** Files for TLS; read anew with each connection. */
export interface TlsFiles {
  /** The authorities that servers may be signed by, instead of the system's. */
  readonly caFile: string | null;
  /** What we show where servers want to see a certificate; both or none. */
  readonly certFile: string | null;
  readonly keyFile: string | null;
}

export interface TlsMaterial {
  readonly ca?: string;
  readonly cert?: string;
  readonly key?: string;
}

export type Credentials =
  | Login
  | { readonly kind: "none" }
  | { readonly kind: "creds"; readonly jwt: string; readonly user: NkeyUser }
  | { readonly kind: "nkey"; readonly user: NkeyUser };

const FILE_BYTES_MAX = 64 * 1024;
const JWT = /-----BEGIN NATS USER JWT-----\s+(\S+)\s+-+END NATS USER JWT-+/;

/** Throws CONFIG_INVALID where a file cannot be read or holds something else. */
export async function readCredentials(
  files: CredentialFiles,
  login: Login | null,
): Promise<Credentials> {
  if (files.tokenFile !== null) {
    const [token = ""] = await readLines(files.tokenFile);
    if (token === "") throw refuse(files.tokenFile, "holds no token on its first line");
    return { kind: "token", token };
  }
  if (files.userFile !== null) {
    const [user = "", password = ""] = await readLines(files.userFile);
    if (user === "" || password === "") {
      throw refuse(files.userFile, "does not hold user and password on two lines");
    }
    return { kind: "user", user, password };
  }
  if (files.credsFile !== null) {
    const file = await read(files.credsFile);
    const jwt = JWT.exec(file)?.[1];
    const user = userIn(file);
    if (jwt !== undefined && user !== null) return { kind: "creds", jwt, user };
    throw refuse(files.credsFile, "holds no NATS user credentials");
  }
  if (files.nkeyFile !== null) {
    const user = userIn(await read(files.nkeyFile));
    if (user !== null) return { kind: "nkey", user };
    throw refuse(files.nkeyFile, "holds no seed of a user (SU...)");
  }
  return login ?? { kind: "none" };
}

/** What a client sends when it connects; the server has it sign a nonce. */
export type Proof =
  | { readonly auth_token: string }
  | { readonly user: string; readonly pass: string }
  | { readonly nkey: string; readonly sig: string }
  | { readonly jwt: string; readonly nkey: string; readonly sig: string };

export function proofOf(credentials: Credentials, nonce = ""): Proof | undefined {
  switch (credentials.kind) {
    case "none":
      return undefined;
    case "token":
      return { auth_token: credentials.token };
    case "user":
      return { user: credentials.user, pass: credentials.password };
    case "creds": {
      const { jwt, user } = credentials;
      return { jwt, nkey: user.publicKey, sig: user.sign(nonce) };
    }
    case "nkey":
      return { nkey: credentials.user.publicKey, sig: credentials.user.sign(nonce) };
    default:
      return credentials satisfies never;
  }
}

/** Empty where no file is named. Throws CONFIG_INVALID where one cannot be read. */
export async function readTls(files: TlsFiles): Promise<TlsMaterial> {
  const material: { ca?: string; cert?: string; key?: string } = {};
  if (files.caFile !== null) material.ca = await read(files.caFile);
  if (files.certFile !== null) material.cert = await read(files.certFile);
  if (files.keyFile !== null) material.key = await read(files.keyFile);
  checkPair(files, material);
  return material;
}

/**
 * Reads them as a connection would, so that a wrong one is seen before there is any. Throws
 * CONFIG_INVALID.
 */
export async function checkFiles(credentials: CredentialFiles, tls: TlsFiles): Promise<void> {
  await readCredentials(credentials, null);
  await readTls(tls);
}

/** Said here, because a server only sees a connection that ends. */
function checkPair({ certFile, keyFile }: TlsFiles, { cert, key }: TlsMaterial): void {
  if (cert === undefined && key === undefined) return;
  if (cert === undefined) throw refuse(keyFile!, "is a key without a certificate");
  if (key === undefined) throw refuse(certFile!, "is a certificate without a key");
  const certificate = parsed(certFile!, "certificate", () => new X509Certificate(cert));
  const privateKey = parsed(keyFile!, "private key", () => createPrivateKey(key));
  if (certificate.checkPrivateKey(privateKey)) return;
  throw refuse(keyFile!, `is not the key of ${certFile}`);
}

function parsed<Value>(file: string, what: string, parse: () => Value): Value {
  try {
    return parse();
  } catch {
    // What OpenSSL says of it names no file and helps nobody.
    throw refuse(file, `holds no ${what} in PEM`);
  }
}

async function readLines(file: string): Promise<string[]> {
  return (await read(file)).split("\n").map((line) => line.trim());
}

async function read(file: string): Promise<string> {
  let text: string;
  try {
    text = await readFile(file, "utf8");
  } catch (thrown) {
    throw refuse(file, `cannot be read: ${messageOf(thrown)}`);
  }
  if (text.length > FILE_BYTES_MAX) throw refuse(file, "is larger than 64 KiB");
  return text;
}

function userIn(text: string): NkeyUser | null {
  const seed = /\bSU[A-Z2-7]{56}\b/.exec(text)?.[0];
  return seed === undefined ? null : userOfSeed(seed);
}

function refuse(file: string, what: string): HearthError {
  return new HearthError("CONFIG_INVALID", `${file} ${what}`);
}
