import { hostProblems, routerProblems } from "../../app/index.ts";
import {
  type ConfigProblem,
  formatProblem,
  loadConfig,
  loadRouterConfig,
  readMachineFacts,
  renderConfig,
  renderRouterConfig,
} from "../../config/index.ts";
import { defineCommand, fileKind, jsonFlag, requiredArgument, toggle } from "../command.ts";
import { printJson } from "../terminal.ts";

export const command = defineCommand({
  description: [
    "Reads the file like the agent and reports every problem with file, line and key. Checks " +
      "sizes against this machine's memory, and that the groups and files in it exist. Nothing " +
      "is started.",
  ],
  arguments: { file: requiredArgument(fileKind, "the configuration to check") },
  flags: {
    router: toggle("check a router's file instead of an agent's"),
    show: toggle("print the configuration with every default filled in"),
    json: jsonFlag,
  },
  examples: [
    { words: "check /etc/hearth/hearth.toml", what: "prints ok, or what to change" },
    { words: "check --show hearth.toml", what: "the same file with all defaults written out" },
    { words: "check --router /etc/hearth/router.toml", what: "a router's file" },
    { words: "check --json hearth.toml", what: "problems as JSON, for editors and pipelines" },
  ],
  exits: ["configRefused"],
  async run({ flags, arguments: { file }, io }) {
    const read = flags.router ? await readRouterFile(file) : await readAgentFile(file);
    if (read.problems.length > 0) {
      if (flags.json) printJson(io, { file, ok: false, problems: read.problems });
      else for (const problem of read.problems) io.out.write(`${shown(file, problem)}\n`);
      return "configRefused";
    }
    const config = flags.show ? { config: read.config } : {};
    if (flags.json) printJson(io, { file, ok: true, problems: [], ...config });
    else io.out.write(flags.show ? read.text : `${file}: ok\n`);
    return "ok";
  },
});

interface ReadFile {
  readonly problems: readonly (ConfigProblem | string)[];
  readonly config: object | null;
  /** The configuration as text, with all defaults filled in. */
  readonly text: string;
}

/** Configuration sections that only a router's file has. */
const ROUTER_ONLY = ["router", "workers", "models", "proxy", "policies", "replicas"];

function refused(problems: ReadFile["problems"]): ReadFile {
  return { problems, config: null, text: "" };
}

function shown(file: string, problem: ConfigProblem | string): string {
  return typeof problem === "string" ? `${file}: ${problem}` : formatProblem(problem);
}

async function readAgentFile(file: string): Promise<ReadFile> {
  const result = await loadConfig(file, readMachineFacts());
  if (!result.ok) {
    const isRouter = result.problems.some(
      ({ what, key }) => what === "unknown section" && ROUTER_ONLY.includes(key),
    );
    return refused(isRouter ? ["this is the file of a router: use --router"] : result.problems);
  }
  const { config } = result;
  return { problems: await hostProblems(config), config, text: renderConfig(config) };
}

async function readRouterFile(file: string): Promise<ReadFile> {
  const result = await loadRouterConfig(file, readMachineFacts());
  if (!result.ok) return refused(result.problems);
  const { config } = result;
  return { problems: await routerProblems(config), config, text: renderRouterConfig(config) };
}
