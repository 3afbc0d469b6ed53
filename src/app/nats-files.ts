import { type CredentialFiles, checkFiles, type TlsFiles } from "../bus/index.ts";
import type { Config } from "../config/index.ts";

/** As agents and routers have it. */
type NatsConfig = Pick<
  Config["nats"],
  "url" | "tokenFile" | "userFile" | "credsFile" | "nkeyFile" | "caFile" | "certFile" | "keyFile"
>;

export interface NatsFiles {
  readonly credentials: CredentialFiles;
  readonly tls: TlsFiles;
}

export function natsFilesOf(nats: NatsConfig): NatsFiles {
  const { tokenFile, userFile, credsFile, nkeyFile, caFile, certFile, keyFile } = nats;
  return {
    credentials: { tokenFile, userFile, credsFile, nkeyFile },
    tls: { caFile, certFile, keyFile },
  };
}

/** Throws CONFIG_INVALID where one cannot be read or holds something else. */
export async function checkNatsFiles(nats: NatsConfig): Promise<void> {
  if (nats.url === null) return;
  const { credentials, tls } = natsFilesOf(nats);
  await checkFiles(credentials, tls);
}
