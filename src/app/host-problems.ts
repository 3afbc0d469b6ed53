import { readTls, readTokens } from "../api/index.ts";
import type { Config } from "../config/index.ts";
import { messageOf } from "../core/index.ts";
import { groupNumber } from "./groups.ts";
import { checkNatsFiles } from "./nats-files.ts";

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
  return problems;
}
