import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { systemClock, type WorkerId } from "../../src/core/index.ts";
import type { Credentials } from "../../src/peers/index.ts";
import {
  type ChangeableTrust,
  createTrust,
  issueHost,
  type KeyPair,
  makeAuthority,
  type Validity,
} from "../../src/peers/trust/index.ts";

const DAY_MS = 86_400_000;

export interface HostFiles {
  readonly certFile: string;
  readonly keyFile: string;
  readonly caFile: string;
}

/** A cluster's authority, and hosts of it. */
export interface TestCluster {
  readonly name: string;
  readonly authority: KeyPair;
  /** Good credentials. */
  host(worker: string): Credentials;
  /** The same, as what transports take. */
  trust(worker: string): ChangeableTrust;
  /** The same in files, in a folder of the worker's name. */
  files(worker: string): HostFiles;
}

/** Valid from an hour ago until this number of days from now. */
export function validFor(days: number): Validity {
  const nowMs = systemClock.wallMs();
  return { notBeforeMs: nowMs - 3_600_000, notAfterMs: nowMs + days * DAY_MS };
}

/** `folder` is needed for `files` alone. */
export function makeCluster(folder: string | null = null, name = "test"): TestCluster {
  const authority = makeAuthority({ cluster: name, validity: validFor(60) });
  const host = (worker: string) => credentialsOf(name, worker, authority);
  return {
    name,
    authority,
    host,
    trust: (worker) => createTrust(host(worker), systemClock),
    files(worker) {
      if (folder === null) throw new Error("a cluster without a folder has no files");
      return writeCredentials(join(folder, worker), host(worker));
    },
  };
}

function credentialsOf(cluster: string, worker: string, authority: KeyPair): Credentials {
  const validity = validFor(30);
  const name = { cluster, worker: worker as WorkerId };
  const { certificate, key } = issueHost({ authority, name, key: null, validity });
  return {
    ...name,
    certificates: certificate,
    key,
    authorities: authority.certificate,
    notAfterMs: validity.notAfterMs,
  };
}

/** As an agent's configuration names them. */
export function writeCredentials(folder: string, credentials: Credentials): HostFiles {
  mkdirSync(folder, { recursive: true });
  const file = (name: string, text: string) => {
    const path = join(folder, name);
    writeFileSync(path, text, { mode: 0o600 });
    return path;
  };
  return {
    certFile: file("host.crt", credentials.certificates),
    keyFile: file("host.key", credentials.key),
    caFile: file("ca.crt", credentials.authorities),
  };
}
