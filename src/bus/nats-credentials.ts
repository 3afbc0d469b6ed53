import { createPrivateKey, X509Certificate } from "node:crypto";
import { readFile } from "node:fs/promises";
import { HearthError, messageOf, type NkeyUser, userOfSeed } from "../core/index.ts";
import type { Login } from "./open-bus.ts";

/**
 * Paths of files with this process's credentials. At most one is set. The files are read again for
 * each connection.
 */
export interface CredentialFiles {
  /** File whose first line is a token. */
  readonly tokenFile: string | null;
  /** File with the user on the first line and the password on the second. */
  readonly userFile: string | null;
  /** File with a JWT and a seed, as `nsc` writes it. */
  readonly credsFile: string | null;
  /** File with an nkey seed, which begins with SU. */
  readonly nkeyFile: string | null;
}

/** Paths of files for TLS. The files are read again for each connection. */
export interface TlsFiles {
  /** Authorities that may sign server certificates, in place of the system's. */
  readonly caFile: string | null;
  /** Client certificate and its private key. Either both are set or neither. */
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

/**
 * Reads the credentials. Throws CONFIG_INVALID if a file cannot be read or has the wrong content.
 */
export async function readCredentials(
  files: CredentialFiles,
  login: Login | null,
): Promise<Credentials> {
  if (files.tokenFile !== null) {
    const [token = ""] = await readLines(files.tokenFile);
    if (token === "") throw refuse(files.tokenFile, "has no token on its first line");
    return { kind: "token", token };
  }
  if (files.userFile !== null) {
    const [user = "", password = ""] = await readLines(files.userFile);
    if (user === "" || password === "") {
      throw refuse(
        files.userFile,
        "must have the user on its first line and the password on its second",
      );
    }
    return { kind: "user", user, password };
  }
  if (files.credsFile !== null) {
    const file = await read(files.credsFile);
    const jwt = JWT.exec(file)?.[1];
    const user = userIn(file);
    if (jwt !== undefined && user !== null) return { kind: "creds", jwt, user };
    throw refuse(files.credsFile, "does not contain NATS user credentials");
  }
  if (files.nkeyFile !== null) {
    const user = userIn(await read(files.nkeyFile));
    if (user !== null) return { kind: "nkey", user };
    throw refuse(files.nkeyFile, "does not contain a user seed (SU...)");
  }
  return login ?? { kind: "none" };
}

/**
 * Credentials in the form that a CONNECT message contains. For nkeys, the client signs the server's
 * nonce.
 */
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

/**
 * Reads the TLS files. The result is empty if no file is set. Throws CONFIG_INVALID if a file
 * cannot be read.
 */
export async function readTls(files: TlsFiles): Promise<TlsMaterial> {
  const material: { ca?: string; cert?: string; key?: string } = {};
  if (files.caFile !== null) material.ca = await read(files.caFile);
  if (files.certFile !== null) material.cert = await read(files.certFile);
  if (files.keyFile !== null) material.key = await read(files.keyFile);
  checkPair(files, material);
  return material;
}

/**
 * Reads all files as for a connection, so that a wrong file is reported before the first
 * connection. Throws CONFIG_INVALID.
 */
export async function checkFiles(credentials: CredentialFiles, tls: TlsFiles): Promise<void> {
  await readCredentials(credentials, null);
  await readTls(tls);
}

/**
 * Checks that certificate and key belong together. Without this check, the only symptom would be a
 * closed connection.
 */
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
    // Replaces OpenSSL's message, which names neither the file nor a fix.
    throw refuse(file, `does not contain a ${what} in PEM`);
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
