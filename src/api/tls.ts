import { createPrivateKey, X509Certificate } from "node:crypto";
import { readFile } from "node:fs/promises";
import { HearthError, messageOf } from "../core/index.ts";

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
