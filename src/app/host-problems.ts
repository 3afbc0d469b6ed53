import { statSync } from "node:fs";
import { dirname } from "node:path";
import { readTls, readTokens } from "../api/index.ts";
import type { Config } from "../config/index.ts";
import { messageOf, systemClock } from "../core/index.ts";
import { readCredentials } from "../peers/index.ts";
import { groupNumber } from "./groups.ts";
import { checkNatsFiles } from "./nats-files.ts";

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

/** What a right configuration names and this host, or this user, does not have: a line each. */
export async function hostProblems(config: Config): Promise<string[]> {
  const problems: string[] = [];
  const { socketGroup } = config.engine;
  try {
    if (socketGroup !== null) groupNumber(socketGroup);
  } catch (error) {
    problems.push(messageOf(error));
  }
  try {
    await readTokens(config.api);
  } catch (error) {
    problems.push(messageOf(error));
  }
  try {
    await readTls(config.api);
  } catch (error) {
    problems.push(messageOf(error));
  }
  try {
    await checkNatsFiles(config.nats);
  } catch (error) {
    problems.push(messageOf(error));
  }
  try {
    await readPeerFiles(config);
  } catch (error) {
    problems.push(messageOf(error));
  }
  problems.push(...auditProblems(config.control.auditFile));
  return problems;
}
