import { statSync } from "node:fs";
import { dirname } from "node:path";
import { readTls, readTokens } from "../api/index.ts";
import type { Config, RouterConfig } from "../config/index.ts";
import { messageOf, systemClock } from "../core/index.ts";
import { readCredentials } from "../peers/index.ts";
import { checkModels } from "../router/proxy/index.ts";
import { checkNatsFiles, groupNumber, readSigningSeed } from "./credentials.ts";
import { proxyModels } from "./router/index.ts";

/** Throws CONFIG_INVALID where a certificate for peers is not good. */
async function readPeerFiles({ node, peers }: Config): Promise<void> {
  const { certFile, keyFile, caFile, cluster } = peers;
  if (certFile === null || keyFile === null || caFile === null) return;
  const files = { certFile, keyFile, caFile };
  await readCredentials(files, { cluster, worker: node.id }, systemClock.wallMs());
}

/** The agent makes the file, and not the folder. */
function auditProblems(path: string | null): string[] {
  if (path === null) return [];
  const folder = dirname(path);
  const isFolder = statSync(folder, { throwIfNoEntry: false })?.isDirectory() === true;
  if (!isFolder) return [`control.audit_file: there is no folder ${folder}`];
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

/** What a right configuration names and this host, or this user, does not have: a line each. */
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

/** The same of a router's. */
export function routerProblems({ api, nats, models }: RouterConfig): Promise<string[]> {
  return problemsOf([
    () => readTokens(api),
    () => readTls(api),
    () => checkNatsFiles(nats),
    ...proxyModels(models).map((model) => () => checkModels([model])),
    () => (nats.signNkeyFile === null ? null : readSigningSeed(nats.signNkeyFile)),
  ]);
}
