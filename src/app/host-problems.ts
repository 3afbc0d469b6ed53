import { statSync } from "node:fs";
import { dirname } from "node:path";
import { readTls, readTokens } from "../api/index.ts";
import type { Config, RouterConfig } from "../config/index.ts";
import { messageOf, systemClock } from "../core/index.ts";
import { readCredentials } from "../peers/index.ts";
import { checkModels } from "../router/proxy/index.ts";
import { checkNatsFiles, groupNumber, readSigningSeed } from "./credentials.ts";
import { proxyModels } from "./router/index.ts";

/** Checks the certificate files for peers. Throws CONFIG_INVALID if one is invalid. */
async function readPeerFiles({ node, peers }: Config): Promise<void> {
  const { certFile, keyFile, caFile, cluster } = peers;
  if (certFile === null || keyFile === null || caFile === null) return;
  const files = { certFile, keyFile, caFile };
  await readCredentials(files, { cluster, worker: node.id }, systemClock.wallMs());
}

/**
 * Checks that the folder of the audit log exists. The agent creates the file, but not the folder.
 */
function auditProblems(path: string | null): string[] {
  if (path === null) return [];
  const folder = dirname(path);
  const isFolder = statSync(folder, { throwIfNoEntry: false })?.isDirectory() === true;
  if (!isFolder) return [`control.audit_file: folder ${folder} does not exist`];
  const isTaken = statSync(path, { throwIfNoEntry: false })?.isDirectory() === true;
  return isTaken ? [`control.audit_file: ${path} is a folder`] : [];
}

async function problemsOf(checks: readonly (() => unknown)[]): Promise<string[]> {
  const problems: string[] = [];
  for (const check of checks) {
    try {
      await check();
    } catch (error) {
      problems.push(messageOf(error));
    }
  }
  return problems;
}

/**
 * Checks that the files, folders and groups named in a valid agent configuration are usable on this
 * host by this user. Returns one line per problem.
 */
export async function hostProblems(config: Config): Promise<string[]> {
  const { socketGroup } = config.engine;
  const apiGroup = config.api.socketGroup;
  const problems = await problemsOf([
    () => (socketGroup === null ? null : groupNumber(socketGroup)),
    () => (apiGroup === null ? null : groupNumber(apiGroup, "api.socket_group")),
    () => readTokens(config.api),
    () => readTls(config.api),
    () => checkNatsFiles(config.nats),
    () => readPeerFiles(config),
  ]);
  return [...problems, ...auditProblems(config.control.auditFile)];
}

/** Checks the files named in a valid router configuration. Returns one line per problem. */
export function routerProblems({ api, nats, models }: RouterConfig): Promise<string[]> {
  return problemsOf([
    () => readTokens(api),
    () => readTls(api),
    () => checkNatsFiles(nats),
    ...proxyModels(models).map((model) => () => checkModels([model])),
    () => (nats.signNkeyFile === null ? null : readSigningSeed(nats.signNkeyFile)),
  ]);
}
