import { join } from "node:path";
import { run } from "../../../scripts/lib/run.ts";
import type { Agent } from "./agent.ts";
import { connectorPath } from "./connectors.ts";
import type { LaneContext } from "./lane.ts";
import { OFFLINE } from "./model.ts";

const FIXTURES = join(import.meta.dir, "..", "fixtures", "lmcache");
const STORAGE_MANAGER = join(FIXTURES, "storage_manager.py");

/** Runs a program of LMCache's environment to its end; what it printed. */
export async function lmcache(
  { folder }: LaneContext,
  name: string,
  command: readonly string[],
  more: Readonly<Record<string, string>> = {},
): Promise<string> {
  const here = { CUDA_VISIBLE_DEVICES: "", PYTHONPATH: await connectorPath(FIXTURES) };
  const env = { ...process.env, ...OFFLINE, ...here, ...more };
  const { ok, output } = await run([...command], { cwd: folder, env });
  if (!ok) throw new Error(`${name} failed: ${output.slice(-2_000)}`);
  return output;
}

interface WriteAndRead {
  /** Runs between writing and reading. */
  readonly between?: () => Promise<void>;
  /** File to which the adapter appends its calls. */
  readonly recordTo?: string;
}

/** LMCache's storage manager writes objects to its L2 and reads them in another process. */
export async function writeAndRead(
  context: LaneContext,
  agent: Agent,
  { between, recordTo }: WriteAndRead,
): Promise<{ stored: number; loaded: number; equal: number }> {
  const env = recordTo === undefined ? {} : { HEARTH_LMCACHE_RECORD: recordTo };
  const step = async (name: "write" | "read") => {
    const command = [context.engine.python, STORAGE_MANAGER, name, agent.socket];
    const printed = await lmcache(context, `storage manager, ${name}`, command, env);
    return JSON.parse(printed.split("\n").findLast((line) => line.startsWith("{"))!);
  };
  const { stored } = await step("write");
  await agent.settled();
  await between?.();
  return { stored, ...(await step("read")) };
}
